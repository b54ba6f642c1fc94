"""Values that cross the pending-ack role: acknowledgments and cursors' states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position
from txnframework.model.transactions import State


@dataclass(frozen=True, slots=True)
class Ack:
    """
    ``batch_indexes`` None: the whole entry (of ``batch_size`` messages); ``cumulative``: and everything before it.
    """

    position: Position
    batch_size: int = 1
    batch_indexes: frozenset[int] | None = None
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class ProcessedRange:
    """
    Which batch of which query consumed what of a segment; kept with the subscription so that a replay finds it.

    ``start`` and ``end`` are of the one segment that is acknowledged; ``epoch`` is that of the take-over.
    """

    query: str
    batch: int
    start: Position
    end: Position
    epoch: int


@dataclass(frozen=True, slots=True)
class AckRequest:
    """
    Acknowledge under ``branch``, on behalf of ``principal``.

    ``incarnation`` is the cursor's as it was when the messages were received.

    ``received``: individual acknowledgments that name what a cumulative one of ``acks`` stands for: the messages that
    it covers, that its consumer was given, and that the consumer did not acknowledge before. None of them may be done.
    They are checked and not recorded; what is covered besides, and was done before it could be given, is passed over.
    """

    branch: Branch
    acks: tuple[Ack, ...]
    incarnation: int
    processed: ProcessedRange | None = None
    principal: str = ""
    received: tuple[Ack, ...] = ()


class AckState(IntEnum):
    """State of one position (or batch index) for one subscription."""

    PENDING = 0
    PENDING_ACK = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class AckStatus:
    """What became of a message for one subscription; ``txn_id``: the open transaction that holds it, if one does."""

    state: AckState
    txn_id: TxnID | None = None


@dataclass(frozen=True, slots=True)
class PendingAck:
    """One acknowledgment that recovery found, and its transaction's state then."""

    branch: Branch
    ack: Ack
    state: State
    incarnation: int


@dataclass(frozen=True, slots=True)
class PendingAcks:
    """What recovery found, by transaction: held by open ones, and those that ended and are not settled yet."""

    open: dict[TxnID, tuple[PendingAck, ...]] = field(default_factory=dict)
    ended: dict[TxnID, State] = field(default_factory=dict)
