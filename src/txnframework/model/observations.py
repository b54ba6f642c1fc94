"""What a host reports of its operations to observers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from txnframework.model.ids import TxnID


class OperationKind(StrEnum):
    """What an operation does; ``batch`` is a micro-batch, reported by the process that ends it."""

    BEGIN = "begin"
    SEND = "send"
    RECEIVE = "receive"
    ACK = "ack"
    END = "end"
    SETTLE = "settle"
    BATCH = "batch"


class ObservedOperation(msgspec.Struct, frozen=True, gc=False):
    """
    One operation, as far as it is known when it begins.

    ``family`` and ``action`` (``commit`` or ``abort``): of an operation on a transaction. ``messages`` and
    ``value_bytes``: how many messages it sends, receives or acknowledges, and the size of their values, which an
    acknowledgment leaves out. ``headers``: of the messages that it receives or acknowledges, as far as they are known.
    ``application``: the name, query and version of a micro-batch. ``begun_ms``: when it began, in ms since 1970, if
    that was before this report; another process may have begun it.
    """

    kind: OperationKind
    topic: str = ""
    subscription: str = ""
    txn_id: TxnID | None = None
    messages: int = 0
    value_bytes: int = 0
    family: str = ""
    action: str = ""
    application: str = ""
    begun_ms: int | None = None
    headers: tuple[Mapping[str, bytes], ...] = ()


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """
    How an operation ended: ``error``, or None; ``txn_id``: the transaction that it began.

    ``is_superseded``: nothing was done, and that is no failure. The operation follows in another way, and is reported
    again.
    """

    error: BaseException | None = None
    txn_id: TxnID | None = None
    is_superseded: bool = False


SUCCEEDED = Outcome()
