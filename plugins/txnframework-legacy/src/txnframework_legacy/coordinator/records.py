"""What stands in a transaction log: JSON, one record for each step of a transaction; ``number`` is that of its id."""

from __future__ import annotations

import msgspec

from txnframework.errors import CorruptEntry
from txnframework_legacy.log import LogRecord


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base of all."""


class New(Record, tag="NEW"):
    """A transaction begins."""

    number: int
    created_ms: int
    deadline_ms: int
    principal: str = ""
    session: str | None = None


class AddPartition(Record, tag="ADD_PARTITION"):
    """An open one is about to write to these topics."""

    number: int
    segments: list[str]


class AddSubscription(Record, tag="ADD_SUBSCRIPTION"):
    """An open one is about to acknowledge in these subscriptions, each a topic and a name."""

    number: int
    subscriptions: list[tuple[str, str]]


class Update(Record, tag="UPDATE"):
    """
    One in state ``expected`` is in state ``state`` from here on.

    ``branches``: with COMMITTING, those that count.
    """

    number: int
    expected: str
    state: str
    at_ms: int
    branches: list[int] | None = None


class Forget(Record, tag="FORGET"):
    """These ended long ago, and nothing of them is left to do: their records are needed no more."""

    numbers: list[int]


AnyRecord = New | AddPartition | AddSubscription | Update | Forget
_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    """Return a record as it stands in the log."""
    return msgspec.json.encode(record)


def decode(record: LogRecord, log: str) -> AnyRecord:
    """
    Return a record of ``log``.

    :raises CorruptEntry: it is none; what it was to say is not guessed at.
    """
    try:
        return _DECODER.decode(record.data)
    except msgspec.MsgspecError as error:
        raise CorruptEntry(record.place.entry, f"record {record.place.index}: {error}", log) from error
