"""Recording what a dispatch's consumers acknowledge, in transactions and outside of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from txnframework.broker._dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker._dispatch.open_acks import acks_of, cumulative_ack
from txnframework.broker._dispatch.plain_acks import PlainAcks
from txnframework.errors import OutcomeUnknown, TransactionConflict, TxnFrameworkError, Unavailable
from txnframework.interfaces import IPendingAckStore
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import Branch
from txnframework.model.positions import Position

FINISHED_ELSEWHERE = (
    "was received by this consumer, and somebody else has received or acknowledged it since; abort, call "
    "redeliver_unacknowledged() and receive again what is left, or acknowledge the other messages one by one"
)
GIVEN_UP = (
    "it was not received by this consumer under the lease that the consumer has now, so others may have what came "
    "before it; receive it again, or acknowledge messages one by one"
)

Sized = tuple[Position, int]
"""A message's position and the size of the batch that it stands in."""


class Acknowledging:
    """
    Marks the messages while their acknowledgment is under way, records it, and says what became of it.

    ``finished`` is told which messages are done; ``look`` and ``look_again`` are called when only the stores can tell:
    the one returns when it was looked, the other has it done soon. ``incarnation`` returns that of the cursor under
    which the messages were read. ``ask`` finds out whether a branch counts, so that ``deliveries`` know it;
    ``is_attached``, whether a consumer is still here and the lease was not lost.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        plain: PlainAcks,
        pending_acks: IPendingAckStore,
        finished: Callable[[Iterable[HeldMessage]], None],
        look: Callable[[], Awaitable[None]],
        look_again: Callable[[], None],
        incarnation: Callable[[], int],
        ask: Callable[[Branch], Awaitable[None]] | None = None,
        is_attached: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._deliveries = deliveries
        self._plain = plain
        self._pending_acks = pending_acks
        self._finished = finished
        self._look = look
        self._look_again = look_again
        self._incarnation = incarnation
        self._ask = ask
        self._is_attached = is_attached
        self._ended = asyncio.Event()

    async def single(
        self,
        messages: tuple[Sized, ...],
        incarnation: int,
        holder: Branch | None,
        principal: str,
        passed: Callable[[], Position],
        consumer: int | None = None,
    ) -> None:
        """
        Acknowledge messages one by one; outside transactions those that a transaction holds are left out.

        Those whose acknowledgment is under way are waited for: it may fail, and then nothing holds them.
        ``passed`` returns how far was read: where nothing is left behind, the mark moves there in the same write.
        ``consumer`` acknowledges them; None: whichever each of them was given to.
        """
        if holder is None:
            free = await self._once_known(messages, incarnation)
            unread = self._any_unread(position for position, _ in free)
            begun = self._deliveries.begin_ack((position for position, _ in free), None, False, consumer)
            upto = passed()
            whole = len(begun) == len(self._deliveries) and all(one.position.entry <= upto for one in begun)
            acks = (Ack(upto, cumulative=True),) if whole and begun and not unread else acks_of(free)
            await self._write(begun, incarnation, acks)
        else:
            positions = [position for position, _ in messages]
            unread = self._any_unread(positions)
            held = self._deliveries.pending(positions)
            begun = self._deliveries.begin_ack(positions, holder, False, consumer)
            request = AckRequest(holder, acks_of(messages), incarnation, principal=principal)
            await self._add(begun, held, request, consumer)
        await self._look_if(unread)

    async def cumulative(
        self, message: Sized, incarnation: int, holder: Branch | None, principal: str, consumer: int
    ) -> None:
        """
        Acknowledge a message and everything before it in the segment.

        In a transaction it stands for what ``consumer`` was given of that, unless it has acknowledged that itself.

        :raises TransactionConflict: somebody else has acknowledged some of what it stands for.
        """
        position, size = message
        ack = cumulative_ack(position, size)
        received = () if holder is None else await self._received(position, holder, consumer)
        covered, unread = self._deliveries.upto(position), self._any_unread((position,))
        held = self._deliveries.pending(covered)
        begun = self._deliveries.begin_ack(covered, holder, True, consumer)
        if holder is None:
            await self._write(begun + held, incarnation, (ack,))
            self._deliveries.claims.acknowledged(consumer, position)
        else:
            request = AckRequest(holder, (ack,), incarnation, principal=principal, received=received)
            await self._add(begun, held, request, consumer)
        await self._look_if(unread)

    async def all_given(self, upto: Position, incarnation: int, holder: Branch, principal: str, consumer: int) -> None:
        """
        Acknowledge cumulatively what ``consumer`` was given up to here, unless it has acknowledged all of it itself.

        :raises TransactionConflict: as ``cumulative``.
        """
        if await self._received(upto, holder, consumer):
            last = self._deliveries.claimed(consumer, upto)[-1]
            await self.cumulative((last.position, last.batch_size), incarnation, holder, principal, consumer)

    async def _received(self, upto: Position, holder: Branch, consumer: int) -> tuple[Ack, ...]:
        """
        Return what a cumulative acknowledgment of ``consumer`` stands for that is not known to be done.

        The store looks at it once more, after it has put the acknowledgment: others may be ahead of what is known here.

        :raises TransactionConflict: it stands for something that others finished.
        """
        lost = await self.first_lost(upto, consumer, holder)
        if not self._is_attached(consumer):
            raise TransactionConflict(holder.txn_id, GIVEN_UP)
        if lost is not None:
            raise TransactionConflict(holder.txn_id, f"{lost} {FINISHED_ELSEWHERE}")
        claimed = self._deliveries.claimed(consumer, upto)
        return acks_of((one.position, one.batch_size) for one in claimed)

    async def first_lost(self, upto: Position, consumer: int, holder: Branch | None = None) -> Position | None:
        """
        Return the first message up to here that ``consumer`` was given, and others finished; None: there is none.

        ``holder`` is not asked for: its transaction is open.
        """
        asked = set() if holder is None else {holder}
        while self._ask is not None and (unknown := self._deliveries.undecided(consumer, upto) - asked):
            for branch in sorted(unknown):
                asked.add(branch)
                await self._ask(branch)
        return self._deliveries.claims.first_lost(consumer, upto)

    async def outdated(self, messages: tuple[Sized, ...], incarnation: int, holder: Branch, principal: str) -> None:
        """Let the store judge what was delivered before someone sought; nothing that is held here is meant."""
        await self._add([], [], AckRequest(holder, acks_of(messages), incarnation, principal=principal))

    def _any_unread(self, positions: Iterable[Position]) -> bool:
        """Return whether some of it was not read here (yet): an earlier dispatch delivered it."""
        return any(self._deliveries.get(position) is None for position in positions)

    async def _look_if(self, unread: bool) -> None:
        """Look at what was recorded before it is read: by what was looked up before, it would be delivered again."""
        if not unread:
            return
        try:
            await self._look()
        except Unavailable as error:
            raise OutcomeUnknown(f"it was acknowledged, and may be delivered again: {error}") from error

    async def _once_known(self, messages: tuple[Sized, ...], incarnation: int) -> tuple[Sized, ...]:
        """Wait until it is known which of the messages are held; return those that are not. None, if someone sought."""
        positions = [position for position, _ in messages]
        while True:
            while any(map(self._deliveries.is_being_acknowledged, positions)):
                self._ended.clear()
                await self._ended.wait()
            if not any(map(self._deliveries.is_pending, positions)):
                break
            # The transaction may have ended since it was looked last: only one that goes on keeps its messages.
            await self._look()
            if not any(map(self._deliveries.is_being_acknowledged, positions)):
                break
        if incarnation != self._incarnation():
            return ()
        return tuple(one for one in messages if not self._deliveries.is_held(one[0]))

    async def _write(self, begun: list[HeldMessage], incarnation: int, acks: tuple[Ack, ...]) -> None:
        if not acks:
            return
        try:
            await self._plain.write(incarnation, acks)
        except TxnFrameworkError:
            if self._deliveries.undo_ack(begun):
                self._look_again()
            raise
        except BaseException:
            self._unsure(begun)
            raise
        else:
            self._deliveries.finished_outside(begun)
            self._finished(begun)
        finally:
            self._ended.set()

    async def _add(
        self, begun: list[HeldMessage], held: list[HeldMessage], request: AckRequest, consumer: int | None = None
    ) -> None:
        """Record it; ``held``: of what it covers, that which another transaction held at the last look."""
        if not request.acks:
            return
        try:
            await self._pending_acks.add(request)
        except OutcomeUnknown:
            self._unsure(begun)
            raise
        except TxnFrameworkError:
            # Another transaction holds it, perhaps one that this process has not heard of.
            self._deliveries.undo_ack(begun)
            self._look_again()
            raise
        except BaseException:
            self._unsure(begun)
            raise
        else:
            self._deliveries.pend(begun)
            # It would have been a conflict if that one were open, or had been committed.
            cumulative = any(ack.cumulative for ack in request.acks)
            self._deliveries.take_over(held, request.branch, cumulative=cumulative, consumer=consumer)
        finally:
            self._ended.set()

    def _unsure(self, begun: list[HeldMessage]) -> None:
        """It may be recorded or not: a look at the stores tells, before any of it is delivered again."""
        self._deliveries.pend(begun)
        self._look_again()
