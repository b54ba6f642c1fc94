"""Recording of acknowledgments of a dispatch's consumers, within and outside transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.acks_in_progress import AckInProgress, AckOwner
from txnframework.broker.dispatch.cursor_acks import CursorAckWriter
from txnframework.broker.dispatch.deliveries import HeldMessage
from txnframework.broker.dispatch.open_acks import acks_of, cumulative_ack
from txnframework.errors import OutcomeUnknown, TransactionConflict, TxnFrameworkError, Unavailable
from txnframework.interfaces import IPendingAckStore
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import Branch
from txnframework.model.positions import Position

FINISHED_ELSEWHERE = (
    "was received by this consumer, and another consumer has received or acknowledged it since; abort, call "
    "redeliver_unacknowledged() and receive the remaining messages, or acknowledge the other messages one by one"
)
NOT_UNDER_LEASE = (
    "this consumer did not receive it under its current lease, so other consumers may have earlier messages; "
    "receive it again, or acknowledge messages one by one"
)
SizedPosition = tuple[Position, int]
"""A message's position and the size of its batch."""


class AckRecorder:
    """
    Marks messages while their acknowledgment is in progress, records it, and updates them with the result.

    The messages are refreshed from the stores when only these have the result.
    """

    def __init__(
        self, owner: AckOwner, progress: AckProgress, cursor_acks: CursorAckWriter, pending_acks: IPendingAckStore
    ) -> None:
        self._owner = owner
        self._progress = progress
        self._cursor_acks = cursor_acks
        self.pending_acks: IPendingAckStore = pending_acks
        """The store that records acknowledgments in transactions."""
        self._ended = asyncio.Event()

    async def single(
        self,
        messages: tuple[SizedPosition, ...],
        incarnation: int,
        holder: Branch | None,
        principal: str,
        passed: Callable[[], Position],
        consumer: int | None = None,
    ) -> None:
        """
        Acknowledge messages individually; outside transactions, skip those that a transaction holds.

        Acknowledgments in progress are awaited, because they may fail and free the messages.

        ``passed`` returns the position up to which was read. If no other message is unacknowledged, the same write
        moves the mark-delete position there. ``consumer`` acknowledges the messages; None means the one that each
        message was given to.
        """
        if holder is None:
            free = await self._once_known(messages, incarnation)
            unread = self._any_unread(position for position, _ in free)
            begun = self._progress.begin_ack((position for position, _ in free), None, False, consumer)
            upto = passed()
            whole = len(begun) == len(self._progress.messages) and all(one.position.entry <= upto for one in begun)
            acks = (Ack(upto, cumulative=True),) if whole and begun and not unread else acks_of(free)
            await self._write(begun, incarnation, acks)
        else:
            positions = [position for position, _ in messages]
            unread = self._any_unread(positions)
            held = self._progress.pending(positions)
            begun = self._progress.begin_ack(positions, holder, False, consumer)
            request = AckRequest(holder, acks_of(messages), incarnation, principal=principal)
            await self._add(begun, held, request, consumer)
        await self._refresh_if(unread)

    def begin_joint(
        self, messages: tuple[SizedPosition, ...], request: AckRequest, consumer: int
    ) -> AckInProgress | None:
        """
        Mark messages whose acknowledgment is about to take effect in the only step of its transaction.

        None if they are to be acknowledged one after the other: they are of another incarnation, an acknowledgment of
        one of them is in progress, or an earlier dispatch delivered some of them.
        """
        positions = [position for position, _ in messages]
        if request.incarnation != self._owner.incarnation or self._any_unread(positions):
            return None
        if any(map(self._progress.is_held, positions)):
            return None
        begun = self._progress.begin_ack(positions, request.branch, False, consumer)
        return AckInProgress(self._owner, self._progress, self._ended, begun, [], request, consumer)

    async def cumulative(
        self, message: SizedPosition, incarnation: int, holder: Branch | None, principal: str, consumer: int
    ) -> None:
        """
        Acknowledge a message and all messages before it in the segment.

        In a transaction this covers the messages that ``consumer`` received and has not acknowledged itself.

        :raises TransactionConflict: another consumer has acknowledged some of the covered messages.
        """
        position, size = message
        ack = cumulative_ack(position, size)
        received = () if holder is None else await self._received(position, holder, consumer)
        covered, unread = self._progress.upto(position), self._any_unread((position,))
        held = self._progress.pending(covered)
        begun = self._progress.begin_ack(covered, holder, True, consumer)
        if holder is None:
            await self._write(begun + held, incarnation, (ack,))
            self._progress.claims.acknowledged(consumer, position)
        else:
            request = AckRequest(holder, (ack,), incarnation, principal=principal, received=received)
            await self._add(begun, held, request, consumer)
        await self._refresh_if(unread)

    async def all_given(self, upto: Position, incarnation: int, holder: Branch, principal: str, consumer: int) -> None:
        """
        Acknowledge cumulatively the messages that ``consumer`` received up to here. Do nothing if it has acknowledged
        all of them.

        :raises TransactionConflict: as for ``cumulative``.
        """
        if await self._received(upto, holder, consumer):
            last = self._progress.claimed(consumer, upto)[-1]
            await self.cumulative((last.position, last.batch_size), incarnation, holder, principal, consumer)

    async def _received(self, upto: Position, holder: Branch, consumer: int) -> tuple[Ack, ...]:
        """
        Return the messages that a cumulative acknowledgment of ``consumer`` covers and that are not known to be
        finished.

        The store checks them again after it has recorded the acknowledgment, because other processes may be ahead of
        this one.

        :raises TransactionConflict: it covers messages that others finished.
        """
        lost = await self.first_lost(upto, consumer, holder)
        if not self._owner.is_attached(consumer):
            raise TransactionConflict(holder.txn_id, NOT_UNDER_LEASE)
        if lost is not None:
            raise TransactionConflict(holder.txn_id, f"{lost} {FINISHED_ELSEWHERE}")
        claimed = self._progress.claimed(consumer, upto)
        return acks_of((one.position, one.batch_size) for one in claimed)

    async def first_lost(self, upto: Position, consumer: int, holder: Branch | None = None) -> Position | None:
        """
        Return the first message up to here that ``consumer`` received and others finished; None if there is none.

        The outcome of ``holder`` is not asked for, because its transaction is open.
        """
        asked = set() if holder is None else {holder}
        while unknown := self._progress.undecided(consumer, upto) - asked:
            for branch in sorted(unknown):
                asked.add(branch)
                await self._owner.load_outcome(branch)
        return self._progress.claims.first_lost(consumer, upto)

    async def outdated(
        self, messages: tuple[SizedPosition, ...], incarnation: int, holder: Branch, principal: str
    ) -> None:
        """
        Let the store decide on messages that were delivered before a seek; the messages held here are not affected.
        """
        await self._add([], [], AckRequest(holder, acks_of(messages), incarnation, principal=principal))

    def _any_unread(self, positions: Iterable[Position]) -> bool:
        """
        Return whether this dispatch has not read some of the messages, because an earlier dispatch delivered them.
        """
        return any(position not in self._progress.messages for position in positions)

    async def _refresh_if(self, unread: bool) -> None:
        """
        Refresh before unread messages are read; with the state from before the acknowledgment they would be
        redelivered.
        """
        if not unread:
            return
        try:
            await self._owner.refresh()
        except Unavailable as error:
            raise OutcomeUnknown(f"it was acknowledged, and may be delivered again: {error}") from error

    async def _once_known(self, messages: tuple[SizedPosition, ...], incarnation: int) -> tuple[SizedPosition, ...]:
        """Wait for acknowledgments in progress, and return the messages that are not held; none after a seek."""
        positions = [position for position, _ in messages]
        while True:
            while any(map(self._progress.is_being_acknowledged, positions)):
                self._ended.clear()
                await self._ended.wait()
            if not any(map(self._progress.is_pending, positions)):
                break
            # The transaction may have ended since the last refresh: only an open one keeps its messages.
            await self._owner.refresh()
            if not any(map(self._progress.is_being_acknowledged, positions)):
                break
        if incarnation != self._owner.incarnation:
            return ()
        return tuple(one for one in messages if not self._progress.is_held(one[0]))

    async def _write(self, begun: list[HeldMessage], incarnation: int, acks: tuple[Ack, ...]) -> None:
        if not acks:
            return
        try:
            await self._cursor_acks.write(incarnation, acks)
        except TxnFrameworkError:
            if self._progress.undo_ack(begun):
                self._owner.request_refresh()
            raise
        except BaseException:
            self._unsure(begun)
            raise
        else:
            self._progress.finished_outside(begun)
            self._owner.remove_finished(begun)
        finally:
            self._ended.set()

    async def _add(
        self, begun: list[HeldMessage], held: list[HeldMessage], request: AckRequest, consumer: int | None = None
    ) -> None:
        """Record a request, whose messages ``begun`` and ``held`` are; see ``AckInProgress``."""
        if not request.acks:
            return
        progress = AckInProgress(self._owner, self._progress, self._ended, begun, held, request, consumer)
        try:
            await self.pending_acks.add(request)
        except OutcomeUnknown:
            progress.unsure()
            raise
        except TxnFrameworkError:
            progress.refused()
            raise
        except BaseException:
            progress.unsure()
            raise
        progress.recorded()

    def _unsure(self, begun: list[HeldMessage]) -> None:
        """Treat messages as held after an unknown outcome, and refresh before any of them is redelivered."""
        self._progress.pend(begun)
        self._owner.request_refresh()
