"""Values of the pending-ack role: acknowledgments and the states of messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position
from txnframework.model.transactions import State


@dataclass(frozen=True, slots=True)
class Ack:
    """
    An acknowledgment of ``position``.

    ``batch_indexes`` None: the whole entry (of ``batch_size`` messages). ``cumulative``: everything before it as well.
    """

    position: Position
    batch_size: int = 1
    batch_indexes: frozenset[int] | None = None
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class ProcessedRange:
    """
    What one batch of a query consumed of a segment; stored with the subscription so that a replay finds it.

    ``start`` and ``end`` are positions of the one segment that is acknowledged; ``epoch`` is that of the takeover.
    """

    query: str
    batch: int
    start: Position
    end: Position
    epoch: int


@dataclass(frozen=True, slots=True)
class AckRequest:
    """
    A request to acknowledge under ``branch``, on behalf of ``principal``.

    ``incarnation`` is the incarnation that the cursor had when the messages were received.

    ``received``: individual acknowledgments of the messages that a cumulative one of ``acks`` represents. It represents
    the messages that it covers, that its consumer received, and that the consumer did not acknowledge before. None of
    them may be acknowledged yet. They are checked and not recorded. Other covered messages were acknowledged before
    they could be delivered, and are skipped.
    """

    branch: Branch
    acks: tuple[Ack, ...]
    incarnation: int
    processed: ProcessedRange | None = None
    principal: str = ""
    received: tuple[Ack, ...] = ()


class AckState(IntEnum):
    """
    State of one position (or batch index) for one subscription.

    The names are those of Apache Pulsar. A message is ``PENDING`` before an acknowledgment is, see ``PENDING_ACK``.
    """

    PENDING = 0
    """Not acknowledged: it is delivered, or was delivered and is not finished."""
    PENDING_ACK = 1
    """Acknowledged in a transaction that is open: it is not delivered until the transaction ends."""
    DELETED = 2
    """Acknowledged: it is not delivered again. The message is still in its topic."""


@dataclass(frozen=True, slots=True)
class AckStatus:
    """The state of a message for one subscription; ``txn_id``: the open transaction that holds it, if one does."""

    state: AckState
    txn_id: TxnID | None = None


@dataclass(frozen=True, slots=True)
class PendingAck:
    """One acknowledgment that recovery found, and the state of its transaction at that time."""

    branch: Branch
    ack: Ack
    state: State
    incarnation: int


@dataclass(frozen=True, slots=True)
class PendingAcks:
    """
    The result of a recovery: the acknowledgments that open transactions hold, and the ended transactions that are not
    settled yet.
    """

    open: dict[TxnID, tuple[PendingAck, ...]] = field(default_factory=dict)
    ended: dict[TxnID, State] = field(default_factory=dict)
