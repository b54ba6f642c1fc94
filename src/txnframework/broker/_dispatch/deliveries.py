"""
What one subscription of one segment has read and not finished: a pure state, without I/O.

A message that was read is WAITING for a consumer, DELIVERED to one, ACKING while its acknowledgment is being
recorded, or PENDING_ACK, held by an open transaction. One that is done is forgotten: the cursor knows it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from txnframework.broker._dispatch.claims import Claims
from txnframework.broker._dispatch.open_acks import OpenAcks
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.dispatching import Candidate
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position

_Counted = TypeVar("_Counted")


NOBODY = 0
"""The number of no consumer."""


class Standing(Enum):
    """Where a message stands that was read and is not done."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    ACKING = "acking"
    PENDING_ACK = "pending ack"


@dataclass(slots=True)
class HeldMessage:
    """
    One message; ``holder`` has its acknowledgment under way, None: no transaction. ``delivery`` numbers the deliveries
    here: a copy of an earlier one is void.

    ``given_to``: whose user has seen it last, and may believe that it is still to finish it, though it waits again;
    NOBODY: one that has gone.
    ``own``: the consumer that it was given to acknowledged it in ``holder``, or does so outside of transactions, and
    nobody has heard that this came to nothing.

    ``since`` counts the looks at the store (see ``Deliveries.look``): a look that began before the acknowledgment was
    confirmed says nothing about it. ``passed_over``: a look ended while the acknowledgment was under way.
    """

    position: Position
    batch_size: int
    message: EntryMessage
    producer: str
    branch: Branch | None
    standing: Standing = Standing.WAITING
    consumer: int | None = None
    given_to: int | None = None
    own: bool = False
    holder: Branch | None = None
    cumulative: bool = False
    since: int = 0
    passed_over: bool = False
    redeliveries: int = 0
    delivery: int = 0
    size_bytes: int = 0

    def __post_init__(self) -> None:
        message = self.message
        self.size_bytes = len(message.value or b"") + len(message.key or b"")
        self.size_bytes += sum(len(name) + len(content) for name, content in message.headers)


class Deliveries:
    """
    The messages that were read and are not done, in reading order.

    ``counts``: whether a branch's transaction was committed and the branch counts; None: that is not known.
    """

    def __init__(self, counts: Callable[[Branch], bool | None] = lambda _: None) -> None:
        self.claims = Claims(counts)
        self._counts = counts
        self._held: dict[Position, HeldMessage] = {}
        self._waiting: list[Position] = []
        self._delivered: Counter[int] = Counter()
        self._delivered_bytes: Counter[int] = Counter()
        self.waiting_bytes = 0
        """How many bytes the messages hold that wait for a consumer."""
        # Like _delivered, and what is being acknowledged besides.
        self._outstanding: Counter[int] = Counter()
        # Of how many messages each transaction holds an acknowledgment.
        self._holding: Counter[TxnID] = Counter()
        # How often messages were delivered that are still to be read.
        self._earlier: dict[Position, int] = {}
        self._looks = 0
        self._made = 0

    # -- facts ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many messages wait for a consumer."""
        return len(self._waiting)

    def fitting(self, room_bytes: int) -> int:
        """Return how many of the messages that wait, from the first on, hold so many bytes at most together."""
        if self.waiting_bytes <= room_bytes:
            return len(self._waiting)
        for count, position in enumerate(self._waiting):
            room_bytes -= self._held[position].size_bytes
            if room_bytes < 0:
                return count
        return len(self._waiting)

    def done_through(self, read: Position) -> Position:
        """Return the entry up to which nothing is held, of those up to ``read``: the one before the first held."""
        first = next(iter(self._held), None)
        if first is None:
            return read
        return Position(first.ledger_id, first.entry_id - 1)

    def get(self, position: Position) -> HeldMessage | None:
        """Return the message at a position, if it was read and is not done."""
        return self._held.get(position)

    def has(self, consumer: int, position: Position, delivery: int) -> bool:
        """Return whether a consumer has this very delivery of a message, and it was not taken back since."""
        held = self._held.get(position)
        return held is not None and _has(held, consumer) and held.delivery == delivery

    def delivered(self, consumer: int) -> int:
        """Return how many messages a consumer has and did not acknowledge."""
        return self._delivered[consumer]

    def delivered_bytes(self, consumer: int) -> int:
        """Return how many bytes those hold."""
        return self._delivered_bytes[consumer]

    def takers(self) -> frozenset[int]:
        """Return the consumers that something was delivered to and is not done, acknowledged or not."""
        return frozenset(self._outstanding)

    def redeliveries(self) -> dict[Position, int]:
        """Return how often messages that are not done were delivered, those that never were left out."""
        held = {one.position: one.redeliveries for one in self._held.values() if one.redeliveries}
        return {**self._earlier, **held}

    def delivered_to(self, consumer: int) -> tuple[Position, ...]:
        """Return the positions that a consumer has and did not acknowledge, in order."""
        return tuple(sorted(one.position for one in self._held.values() if _has(one, consumer)))

    def holders(self) -> frozenset[TxnID]:
        """Return the transactions that hold acknowledged messages."""
        return frozenset(self._holding)

    def candidates(self, messages_max: int) -> tuple[Candidate, ...]:
        """Return the first messages that wait, in reading order."""
        found = (self._held[position] for position in self._waiting[:messages_max])
        return tuple(Candidate(one.position, one.message.key, one.redeliveries) for one in found)

    def upto(self, position: Position) -> tuple[Position, ...]:
        """Return what a cumulative acknowledgment of ``position`` covers, in order."""
        return tuple(sorted(one for one in self._held if one <= position))

    def is_held(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is under way or pending."""
        held = self._held.get(position)
        return held is not None and held.standing in (Standing.ACKING, Standing.PENDING_ACK)

    def is_being_acknowledged(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is under way: nobody knows yet what comes of it."""
        held = self._held.get(position)
        return held is not None and held.standing is Standing.ACKING

    def is_pending(self, position: Position) -> bool:
        """Return whether a transaction held a message when the stores were looked at last, or since."""
        held = self._held.get(position)
        return held is not None and held.standing is Standing.PENDING_ACK

    def claimed(self, consumer: int, upto: Position) -> list[HeldMessage]:
        """
        Return what a consumer was given up to here, and is not known to have acknowledged itself with effect, in order.

        With what others finished of it, which ``claims`` has, that is what its cumulative acknowledgment stands for.
        """
        given = (one for one in self._held.values() if one.given_to == consumer and one.position <= upto)
        return sorted((one for one in given if not self._is_own(one)), key=lambda one: one.position)

    def left_behind(self, consumer: int) -> dict[Position, Branch | None]:
        """
        Return what a consumer was given and has not finished, as others get it now: they may finish it.

        Each with the branch under which it was acknowledged, None if it was not.
        """
        found = self.claims.left_by(consumer)
        for one in self._held.values():
            if one.given_to == consumer:
                found[one.position] = one.holder if one.own else None
        return found

    def undecided(self, consumer: int, upto: Position) -> set[Branch]:
        """Return the branches under which a consumer acknowledged some of it, and of which nothing is known."""
        found = {one.holder for one in self.claimed(consumer, upto) if one.own and one.holder is not None}
        return {one for one in found if self._counts(one) is None} | self.claims.undecided(consumer, upto)

    def pending(self, positions: Iterable[Position]) -> list[HeldMessage]:
        """Return those of some messages that a transaction held when the stores were looked at last, or since."""
        return [self._held[position] for position in positions if self.is_pending(position)]

    # -- events ---------------------------------------------------------------------------------------

    def remember(self, earlier: Mapping[Position, int]) -> None:
        """Messages that were delivered so often before are still to be read."""
        self._earlier.update(earlier)

    def read(self, held: HeldMessage, cursor: Cursor, pending: OpenAcks) -> None:
        """Take in a message that was read; it is dropped at once if it is done."""
        held.redeliveries = self._earlier.pop(held.position, 0)
        if held.position in self._held or state_of(cursor, held.position) is AckState.DELETED:
            return
        self._held[held.position] = held
        self._set(held, Standing.WAITING)
        holder = pending.holder(held.position)
        if holder is not None:
            held.cumulative = holder.ack.cumulative
            self._set(held, Standing.PENDING_ACK, holder.branch)

    def deliver(self, position: Position, consumer: int) -> HeldMessage | None:
        """Give a waiting message to a consumer; None if it does not wait any more."""
        held = self._held.get(position)
        if held is None or held.standing is not Standing.WAITING:
            return None
        self._made += 1
        held.consumer, held.delivery, held.own = consumer, self._made, False
        self._set(held, Standing.DELIVERED)
        return held

    def hand_out(self, consumer: int, position: Position, delivery: int) -> bool:
        """
        The consumer's user is about to see a delivery; return whether it still holds, as ``has`` does.

        From now on the user may process the message, and it may not be finished by somebody else unnoticed.
        """
        if not self.has(consumer, position, delivery):
            return False
        held = self._held[position]
        if held.given_to is not None and held.given_to not in (NOBODY, consumer):
            # Whoever had it before may believe that it is still to finish it, and somebody else does now.
            self.claims.finished(held.given_to, position, None)
        held.given_to = consumer
        return True

    def give_back(self, positions: Iterable[Position], consumer: int, unseen: frozenset[Position]) -> list[Position]:
        """Let delivered messages wait again; those in ``unseen`` never came before the user's eyes. Return which."""
        returned = []
        for position in positions:
            held = self._held.get(position)
            if held is not None and _has(held, consumer):
                held.redeliveries += position not in unseen
                self._set(held, Standing.WAITING)
                returned.append(position)
        return returned

    def orphan(self, consumer: int, unseen: frozenset[Position] = frozenset()) -> None:
        """
        A consumer is gone: what it has goes to others, also what it acknowledges, should that come to nothing.

        What is in ``unseen`` never came before the user's eyes.
        """
        for held in self._held.values():
            if held.consumer == consumer:
                if held.standing is Standing.DELIVERED:
                    held.redeliveries += held.position not in unseen
                    self._set(held, Standing.WAITING)
                held.consumer = None
            if held.given_to == consumer:
                held.given_to = NOBODY
        self._outstanding.pop(consumer, None)
        self.claims.forget(consumer)

    def renounce(self, consumer: int) -> None:
        """A consumer wants everything again that it did not acknowledge: it has no part in what does not come again."""
        self.claims.forget(consumer)
        for held in self._held.values():
            if held.given_to == consumer and held.standing is Standing.WAITING:
                held.given_to = None

    def begin_ack(
        self, positions: Iterable[Position], holder: Branch | None, cumulative: bool, consumer: int | None = None
    ) -> list[HeldMessage]:
        """
        Mark messages whose acknowledgment is being recorded; those that another one has stay as they are.

        ``consumer`` acknowledges them; None: whichever each of them was given to.
        """
        begun = []
        for position in positions:
            held = self._held.get(position)
            if held is not None and held.standing in (Standing.WAITING, Standing.DELIVERED):
                held.cumulative, held.passed_over = cumulative, False
                held.own = consumer is None or held.given_to == consumer
                self._set(held, Standing.ACKING, holder)
                begun.append(held)
        return begun

    def undo_ack(self, begun: Iterable[HeldMessage]) -> bool:
        """
        An acknowledgment was refused: the messages stand as before; return whether a look has to tell that of some.

        Those that a look passed over may be done, or held by somebody else, who relies on it that this was noticed:
        they are not handed out before another look.
        """
        unsure = False
        for held in begun:
            if self._held.get(held.position) is held and held.standing is Standing.ACKING:
                held.own = False
                if held.passed_over:
                    unsure = True
                    self._pend(held)
                else:
                    self._set(held, Standing.WAITING if held.consumer is None else Standing.DELIVERED)
        return unsure

    def pend(self, begun: Iterable[HeldMessage]) -> None:
        """A transactional acknowledgment was recorded, or may have been."""
        for held in begun:
            if self._held.get(held.position) is held and held.standing is Standing.ACKING:
                self._pend(held)

    def take_over(
        self, held: Iterable[HeldMessage], holder: Branch, *, cumulative: bool, consumer: int | None = None
    ) -> None:
        """
        A transactional acknowledgment was recorded of what another transaction held: that one had been aborted.

        A look that has found that, but began before this was recorded, may have freed them, or be about to.
        """
        for one in held:
            if self._is_own(one):
                continue  # passed over: the transaction before counts, and the next look finds it done
            if self._held.get(one.position) is one and one.standing is not Standing.ACKING:
                one.since, one.cumulative = self._looks, cumulative
                one.own = consumer is None or one.given_to == consumer
                self._set(one, Standing.PENDING_ACK, holder)

    def finished_outside(self, done: Iterable[HeldMessage]) -> None:
        """These were acknowledged outside of transactions: note it for those that were given to another consumer."""
        for held in done:
            if not (held.own and held.standing is Standing.ACKING):
                self._claim(held)

    def forget(self, done: Iterable[HeldMessage]) -> frozenset[Position]:
        """
        These are done; return the positions of those that were held.

        Another message at the same position is not meant: it was read again, after someone sought.
        """
        gone = set()
        for held in done:
            if self._held.get(held.position) is held:
                del self._held[held.position]
                self._leave(held)
                gone.add(held.position)
        return frozenset(gone)

    def clear(self) -> frozenset[Position]:
        """Forget everything, whatever its standing; return what it was."""
        gone = frozenset(self._held)
        self._held.clear()
        self._waiting.clear()
        self.waiting_bytes = 0
        self._delivered.clear()
        self._delivered_bytes.clear()
        self._outstanding.clear()
        self._holding.clear()
        self._earlier.clear()
        self.claims.clear()
        return gone

    def look(self) -> int:
        """A look at the store begins; return its number for ``reconcile``."""
        self._looks += 1
        return self._looks

    def reconcile(self, cursor: Cursor, pending: OpenAcks, look: int) -> frozenset[Position]:
        """
        Bring the messages in line with what a look at the store found; return those that are free again or done.

        Messages of a transaction that aborted wait again, with their redelivery count raised. Those of an aborted
        cumulative acknowledgment stay with their consumer, who asks for them when it wants them.
        """
        freed: set[Position] = set()
        for position, held in list(self._held.items()):
            if held.standing is Standing.ACKING:
                held.passed_over = True
                continue
            if state_of(cursor, position) is AckState.DELETED:
                self._claim(held)
                freed |= self.forget((held,))
                continue
            holder = pending.holder(position)
            if holder is not None:
                held.cumulative = holder.ack.cumulative
                held.own = held.own and held.holder == holder.branch
                self._set(held, Standing.PENDING_ACK, holder.branch)
            elif held.standing is Standing.PENDING_ACK and held.since < look:
                self._release(held)
                freed.add(position)
        return frozenset(freed)

    # -- one message ----------------------------------------------------------------------------------

    def _pend(self, held: HeldMessage) -> None:
        held.since = self._looks
        self._set(held, Standing.PENDING_ACK, held.holder)

    def _is_own(self, held: HeldMessage) -> bool:
        """Whether its consumer has acknowledged it in a transaction that counts, or does it now outside of any."""
        if held.holder is None:
            return held.own and held.standing is Standing.ACKING
        return held.own and self._counts(held.holder) is True

    def _claim(self, held: HeldMessage) -> None:
        """A message that was given to somebody was found done: note it, unless that consumer acknowledged it."""
        if held.given_to is not None and held.given_to != NOBODY:
            self.claims.finished(held.given_to, held.position, held.holder if held.own else None)

    def _release(self, held: HeldMessage) -> None:
        held.own = False
        if held.cumulative and held.consumer is not None:
            self._set(held, Standing.DELIVERED)
            return
        held.redeliveries += 1
        self._set(held, Standing.WAITING)

    def _set(self, held: HeldMessage, standing: Standing, holder: Branch | None = None) -> None:
        self._leave(held)
        held.standing, held.holder = standing, holder
        if standing is Standing.PENDING_ACK and holder is not None:
            self._holding[holder.txn_id] += 1
        if standing is Standing.WAITING:
            held.consumer = None
            bisect.insort(self._waiting, held.position)
            self.waiting_bytes += held.size_bytes
        elif held.consumer is not None:
            self._outstanding[held.consumer] += 1
            if standing is Standing.DELIVERED:
                self._delivered[held.consumer] += 1
                self._delivered_bytes[held.consumer] += held.size_bytes

    def _leave(self, held: HeldMessage) -> None:
        """Take a message out of what its standing counts in."""
        if held.standing is Standing.PENDING_ACK and held.holder is not None:
            _take(self._holding, held.holder.txn_id)
        if held.standing is Standing.WAITING:
            at = bisect.bisect_left(self._waiting, held.position)
            if at < len(self._waiting) and self._waiting[at] == held.position:
                del self._waiting[at]
                self.waiting_bytes -= held.size_bytes
        elif held.consumer is not None:
            _take(self._outstanding, held.consumer)
            if held.standing is Standing.DELIVERED:
                _take(self._delivered_bytes, held.consumer, held.size_bytes)
                _take(self._delivered, held.consumer)


def _take(counts: Counter[_Counted], counted: _Counted, amount: int = 1) -> None:
    counts[counted] -= amount
    if not counts[counted]:
        del counts[counted]


def _has(held: HeldMessage, consumer: int) -> bool:
    return held.standing is Standing.DELIVERED and held.consumer == consumer
