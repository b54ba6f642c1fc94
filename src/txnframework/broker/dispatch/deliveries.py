"""
The unfinished messages that one subscription has read of one segment: pure state, without I/O.

A message is DELAYED until it is due, WAITING for a consumer, DELIVERED to one, ACKING while its acknowledgment is being
recorded, or PENDING_ACK while an open transaction holds it. A finished message is forgotten: the cursor includes it.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import TypeVar

from txnframework.broker.dispatch.claims import Claims
from txnframework.broker.dispatch.delayed_messages import DelayedMessages
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.delays import deliver_at_ms
from txnframework.model.dispatch import Candidate
from txnframework.model.entries import EntryMessage
from txnframework.model.entry_ranges import Range
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position

_Counted = TypeVar("_Counted")
_position_of = attrgetter("position")

DETACHED = 0
"""The id for a consumer that has been detached."""


class MessageState(Enum):
    """The state of an unfinished message."""

    DELAYED = "delayed"
    WAITING = "waiting"
    DELIVERED = "delivered"
    ACKING = "acking"
    PENDING_ACK = "pending ack"


_ACKNOWLEDGED = (MessageState.ACKING, MessageState.PENDING_ACK)


@dataclass(slots=True)
class HeldMessage:
    """
    An unfinished message.

    * ``holder``: the branch whose acknowledgment is in progress or pending; None outside transactions.
    * ``delivery``: the number of the latest delivery; copies of earlier deliveries are void.
    * ``received``: the number of the last delivery that a user received.
    * ``given_to``: the last consumer whose user received the message and may still process it, even if it waits again;
      DETACHED if that consumer was detached.
    * ``own``: the consumer that received the message acknowledged it in ``holder``, or does so outside transactions,
      and no failure of this is known.
    * ``since``: the number of the last refresh that began before the acknowledgment was confirmed. Refreshes up to this
      one do not include the acknowledgment.
    * ``skipped_by_refresh``: a refresh ended while the acknowledgment was in progress.
    * ``due_ms``: the message waits for a consumer only after this time; 0 if it need not be delayed.
    """

    position: Position
    batch_size: int
    message: EntryMessage
    producer: str
    branch: Branch | None
    state: MessageState = MessageState.WAITING
    consumer: int | None = None
    given_to: int | None = None
    own: bool = False
    holder: Branch | None = None
    cumulative: bool = False
    since: int = 0
    skipped_by_refresh: bool = False
    redeliveries: int = 0
    delivery: int = 0
    received: int = 0
    size_bytes: int = 0
    due_ms: int = 0


class Deliveries:
    """
    The unfinished messages that were read, in reading order.

    ``counts`` returns whether a branch counts: its transaction was committed with it. None means unknown. With
    ``delays``, messages are held back until they are due.
    """

    def __init__(self, counts: Callable[[Branch], bool | None] = lambda _: None, *, delays: bool = False) -> None:
        self.claims = Claims(counts)
        self._delays = delays
        self.messages: dict[Position, HeldMessage] = {}
        """The unfinished messages, by position."""
        self.waiting: list[Candidate] = []
        """The waiting messages, in reading order, as they are offered."""
        self.waiting_bytes = 0
        """The total size of the waiting messages."""
        self.delayed = DelayedMessages()
        """The messages that wait for their time."""
        self.delivered: Counter[int] = Counter()
        """The number of unacknowledged messages of each consumer."""
        self.delivered_bytes: Counter[int] = Counter()
        """The total size of each consumer's unacknowledged messages."""
        self.holders_changed = asyncio.Event()
        """Set when the set of transactions that hold messages has changed, perhaps only for a moment."""
        self.woken = asyncio.Event()
        """Set when a waiting message may be delivered that could not be before: it waits again, or there is room."""
        # The messages in the state ACKING or PENDING_ACK.
        self._acknowledged: dict[Position, HeldMessage] = {}
        # Like delivered, plus the messages that are being acknowledged.
        self._outstanding: Counter[int] = Counter()
        # The number of messages that each transaction holds.
        self._holding: Counter[TxnID] = Counter()
        # The delivery counts of messages that have not been read yet.
        self._earlier: dict[Position, int] = {}
        self._made = 0

    # -- facts ----------------------------------------------------------------------------------------

    def fitting(self, room_bytes: int) -> int:
        """Return how many of the first waiting messages have at most this total size."""
        if self.waiting_bytes <= room_bytes:
            return len(self.waiting)
        for count, one in enumerate(self.waiting):
            room_bytes -= self.messages[one.position].size_bytes
            if room_bytes < 0:
                return count
        return len(self.waiting)

    def done_through(self, read: Position) -> Position:
        """Return the entry up to which nothing is held: ``read``, or the entry before the first held message."""
        first = next(iter(self.messages), None)
        if first is None:
            return read
        return Position(first.ledger_id, first.entry_id - 1)

    def consumers(self) -> frozenset[int]:
        """Return the consumers with unfinished messages, acknowledged or not."""
        return frozenset(self._outstanding)

    def redeliveries(self) -> dict[Position, int]:
        """Return the delivery counts of unfinished messages, without those that were never delivered."""
        held = {one.position: one.redeliveries for one in self.messages.values() if one.redeliveries}
        return {**self._earlier, **held}

    def delivered_to(self, consumer: int) -> tuple[Position, ...]:
        """Return the positions of a consumer's unacknowledged messages, in order."""
        return tuple(sorted(one.position for one in self.messages.values() if _has(one, consumer)))

    def has(self, consumer: int, position: Position) -> bool:
        """Return whether a consumer has a message that is neither acknowledged nor given back."""
        held = self.messages.get(position)
        return held is not None and _has(held, consumer)

    def holders(self) -> frozenset[TxnID]:
        """Return the transactions that hold messages."""
        return frozenset(self._holding)

    def candidates(self, messages_max: int) -> tuple[Candidate, ...]:
        """Return the first waiting messages, in reading order."""
        return tuple(self.waiting[:messages_max])

    def concerned_by(self, ranges: Iterable[Range]) -> list[HeldMessage]:
        """Return the messages in ranges, and all whose acknowledgment is in progress or pending, in order."""
        positions = list(self.messages)  # in order, as messages are read
        found = set(self._acknowledged)
        for first, last in ranges:
            found.update(positions[bisect.bisect_left(positions, first) : bisect.bisect_right(positions, last)])
        return [self.messages[position] for position in sorted(found)]

    def in_use(self) -> bool:
        """Return whether consumers have messages whose acknowledgment was not recorded."""
        return any(one.state in (MessageState.DELIVERED, MessageState.ACKING) for one in self.messages.values())

    def next_due_ms(self) -> int | None:
        """Return the time at which the next delayed message is due; None if none is delayed."""
        due = self.delayed.next_due() if self.delayed.count else None
        return None if due is None else due[0]

    # -- events ---------------------------------------------------------------------------------------

    def remember(self, earlier: Mapping[Position, int]) -> None:
        """Set the earlier delivery counts of messages, where they are higher than the known ones."""
        for position, count in earlier.items():
            held = self.messages.get(position)
            if held is not None:
                held.redeliveries = max(held.redeliveries, count)
                if held.state is MessageState.WAITING:
                    self.set_state(held, MessageState.WAITING)  # so that it is offered with the new count
            else:
                self._earlier[position] = max(self._earlier.get(position, 0), count)

    def read(self, held: HeldMessage, cursor: Cursor, pending: OpenAcks) -> None:
        """Add a message that was read, unless it is finished."""
        position, message = held.position, held.message
        held.size_bytes = len(message.value or b"") + len(message.key or b"")
        if message.headers:
            held.size_bytes += sum(len(name) + len(content) for name, content in message.headers)
        if self._earlier:
            held.redeliveries = self._earlier.pop(position, 0)
        if position in self.messages or state_of(cursor, position) is AckState.DELETED:
            return
        self.messages[position] = held
        if self._delays and message.headers:
            held.due_ms = deliver_at_ms(message.headers)
        self._wait(held)
        holder = None if pending.is_empty else pending.holder(position)
        if holder is not None:
            held.cumulative = holder.ack.cumulative
            self.set_state(held, MessageState.PENDING_ACK, holder.branch)

    def release_due(self, now_ms: int) -> None:
        """Let the delayed messages wait for a consumer that are due."""
        while (due := self.delayed.next_due()) is not None and due[0] <= now_ms:
            held = self.messages[due[1]]
            held.due_ms = 0
            self.set_state(held, MessageState.WAITING)

    def deliver(self, position: Position, consumer: int) -> HeldMessage | None:
        """Give a waiting message to a consumer; return None if the message is not waiting."""
        held = self.messages.get(position)
        if held is None or held.state is not MessageState.WAITING:
            return None
        self._made += 1
        held.consumer, held.delivery, held.own = consumer, self._made, False
        self.set_state(held, MessageState.DELIVERED)
        return held

    def hand_out(self, consumer: int, position: Position, delivery: int) -> bool:
        """
        Note that a consumer's user receives a delivery; return False if the consumer does not have it any more.

        From now on the user may process the message, so others finishing it must be noticed.
        """
        held = self.messages.get(position)
        if held is None or held.state is not MessageState.DELIVERED:
            return False
        if held.consumer != consumer or held.delivery != delivery:
            return False
        if held.given_to is not None and held.given_to not in (DETACHED, consumer):
            # The previous consumer's user may still process the message, and another consumer will finish it now.
            self.claims.finished(held.given_to, position, None)
        held.given_to, held.received = consumer, delivery
        return True

    def requeue(self, positions: Iterable[Position], consumer: int, unseen: frozenset[Position]) -> list[Position]:
        """
        Let delivered messages wait again, and return them; a message in ``unseen`` was never returned by receive().
        """
        returned = []
        for position in positions:
            held = self.messages.get(position)
            if held is not None and _has(held, consumer):
                held.redeliveries += position not in unseen
                self.set_state(held, MessageState.WAITING)
                returned.append(position)
        return returned

    def detach(self, consumer: int, unseen: frozenset[Position] = frozenset()) -> None:
        """
        Detach a consumer: its messages go to others, also those whose acknowledgment in progress fails.

        Messages in ``unseen`` were never returned by receive().
        """
        for held in self.messages.values():
            if held.consumer == consumer:
                if held.state is MessageState.DELIVERED:
                    held.redeliveries += held.position not in unseen
                    self.set_state(held, MessageState.WAITING)
                held.consumer = None
            if held.given_to == consumer:
                held.given_to = DETACHED
        self._outstanding.pop(consumer, None)
        self.claims.forget(consumer)

    def forget_received(self, consumer: int) -> None:
        """Forget that a consumer received waiting messages, after its request for redelivery."""
        self.claims.forget(consumer)
        for held in self.messages.values():
            if held.given_to == consumer and held.state is MessageState.WAITING:
                held.given_to = None

    def forget(self, done: Iterable[HeldMessage]) -> frozenset[Position]:
        """
        Remove finished messages, and return the positions of those that were held.

        Another message at the same position stays: it was read again after a seek.
        """
        gone = set()
        for held in done:
            if self.messages.get(held.position) is held:
                del self.messages[held.position]
                self._leave(held)
                gone.add(held.position)
        return frozenset(gone)

    def clear(self) -> frozenset[Position]:
        """Remove all messages, and return their positions."""
        gone = frozenset(self.messages)
        self.messages.clear()
        self.waiting.clear()
        self.waiting_bytes = 0
        self.delayed.clear()
        self.delivered.clear()
        self.delivered_bytes.clear()
        self._acknowledged.clear()
        self._outstanding.clear()
        self._holding.clear()
        self.holders_changed.set()
        self._earlier.clear()
        self.claims.clear()
        return gone

    # -- one message ----------------------------------------------------------------------------------

    def set_state(self, held: HeldMessage, state: MessageState, holder: Branch | None = None) -> None:
        """Change the state of a message; ``holder`` is that of its acknowledgment, if there is one."""
        self._leave(held)
        held.state, held.holder = state, holder
        if state in _ACKNOWLEDGED:
            self._acknowledged[held.position] = held
        if state is MessageState.PENDING_ACK and holder is not None:
            self._holding[holder.txn_id] += 1
            self.holders_changed.set()
        if state is MessageState.WAITING:
            held.consumer = None
            self._wait(held)
        elif held.consumer is not None:
            self._outstanding[held.consumer] += 1
            if state is MessageState.DELIVERED:
                self.delivered[held.consumer] += 1
                self.delivered_bytes[held.consumer] += held.size_bytes

    def _wait(self, held: HeldMessage) -> None:
        """Add a message to those that wait, or to the delayed ones if it is not due."""
        if held.due_ms:
            held.state = MessageState.DELAYED
            self.delayed.add(held.position, held.due_ms, held.size_bytes)
            self.woken.set()  # it may be due before the others
            return
        bisect.insort(self.waiting, Candidate(held.position, held.message.key, held.redeliveries), key=_position_of)
        self.waiting_bytes += held.size_bytes
        self.woken.set()

    def _leave(self, held: HeldMessage) -> None:
        """Remove a message from the counters of its state."""
        if held.state is MessageState.DELAYED:
            self.delayed.remove(held.position, held.size_bytes)
            return
        if held.state in _ACKNOWLEDGED:
            self._acknowledged.pop(held.position, None)
        if held.state is MessageState.PENDING_ACK and held.holder is not None:
            _take(self._holding, held.holder.txn_id)
            self.holders_changed.set()
        if held.state is MessageState.WAITING:
            # Nearly always the first one leaves, because messages are delivered in order.
            is_first = bool(self.waiting) and self.waiting[0].position == held.position
            at = 0 if is_first else bisect.bisect_left(self.waiting, held.position, key=_position_of)
            if is_first or (at < len(self.waiting) and self.waiting[at].position == held.position):
                del self.waiting[at]
                self.waiting_bytes -= held.size_bytes
        elif held.consumer is not None:
            _take(self._outstanding, held.consumer)
            if held.state is MessageState.DELIVERED:
                _take(self.delivered_bytes, held.consumer, held.size_bytes)
                _take(self.delivered, held.consumer)
                if self.waiting:
                    # Its consumer may have been at its limit, whatever becomes of this message.
                    self.woken.set()


def _take(counts: Counter[_Counted], counted: _Counted, amount: int = 1) -> None:
    counts[counted] -= amount
    if not counts[counted]:
        del counts[counted]


def _has(held: HeldMessage, consumer: int) -> bool:
    return held.state is MessageState.DELIVERED and held.consumer == consumer
