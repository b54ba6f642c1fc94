"""Records of a transaction log: JSON, one for each step of a transaction; ``number`` is the number of its id."""

from __future__ import annotations

from typing import Annotated

import msgspec

from txnframework.model.records import Natural
from txnframework_legacy.log import LogRecord
from txnframework_legacy.log.format import decode_record

StateText = Annotated[str, msgspec.Meta(pattern=r"\A(OPEN|COMMITTING|ABORTING|COMMITTED|ABORTED)\Z")]


class TransactionRecord(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base class of the records."""


class New(TransactionRecord, tag="NEW"):
    """A transaction begins."""

    number: Natural
    created_ms: Natural
    deadline_ms: Natural
    principal: str = ""
    session: str | None = None


class AddPartition(TransactionRecord, tag="ADD_PARTITION"):
    """An open transaction is about to write to these topics."""

    number: Natural
    segments: list[str]


class AddSubscription(TransactionRecord, tag="ADD_SUBSCRIPTION"):
    """An open transaction is about to acknowledge on these subscriptions, each a topic and a name."""

    number: Natural
    subscriptions: list[tuple[str, str]]


class Update(TransactionRecord, tag="UPDATE"):
    """
    A transaction in state ``expected`` changes to ``state``.

    ``branches``: with COMMITTING, the branches that count.
    """

    number: Natural
    expected: StateText
    state: StateText
    at_ms: Natural
    branches: list[Natural] | None = None


class Forget(TransactionRecord, tag="FORGET"):
    """These transactions ended long ago and are completely settled: their records are no longer needed."""

    numbers: list[Natural]


AnyRecord = New | AddPartition | AddSubscription | Update | Forget
_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    """Return the stored form of a record."""
    return msgspec.json.encode(record)


def decode(record: LogRecord, log: str) -> AnyRecord:
    """
    Return a record of ``log``.

    :raises CorruptEntry: the data is not a valid record.
    """
    return decode_record(_DECODER, record, log)
