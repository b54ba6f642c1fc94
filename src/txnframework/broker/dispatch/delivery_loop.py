"""The loop that delivers a segment's messages to a subscription's consumers as they are read."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from txnframework.broker.dispatch.consumers import AttachedConsumers
from txnframework.broker.dispatch.cursor_acks import CursorAckWriter
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.dispatch.read_ahead import ReadAhead
from txnframework.environment import Environment
from txnframework.model.acks import Ack
from txnframework.model.cursor import Cursor
from txnframework.runtime.tasks import first_completed


class DeliveryLoop:
    """
    Reads messages ahead, offers them to the dispatcher, and delivers them as it assigns.

    It waits for announcements and never polls. ``cursor_moved`` is called after the cursor has been moved past entries
    that need no acknowledgment.

    * ``cursor``, ``open_acks``: as of the last refresh; there is no cursor before the first one.
    * ``incarnation``: that of the cursor under which messages are read; 0 before the first refresh.
    * ``woken``: to be set when the state has changed from which the loop decides. ``Deliveries`` sets it for its part.
    * ``retiring``: the segment is about to be given up, so nothing more is delivered.
    * ``drained``: the segment is sealed, and all its messages were delivered.
    * ``done``: the segment is sealed, and all its messages are acknowledged.
    """

    def __init__(
        self,
        reading: ReadAhead,
        consumers: AttachedConsumers,
        cursor_acks: CursorAckWriter,
        environment: Environment,
        cursor_moved: Callable[[], None],
    ) -> None:
        self.reading = reading
        self.cursor: Cursor | None = None
        self.open_acks = OpenAcks({}, 0)
        self.incarnation = 0
        self.woken = reading.deliveries.woken
        self.retiring = self.drained = self.done = False
        self._deliveries = reading.deliveries
        self._consumers = consumers
        self._cursor_acks = cursor_acks
        self._environment = environment
        self._cursor_moved = cursor_moved
        self._takers: frozenset[int] = frozenset()

    @property
    def is_quiet(self) -> bool:
        """Whether no consumer has a message whose acknowledgment was not recorded."""
        return not self._deliveries.in_use()

    def begin_at(self, cursor: Cursor) -> None:
        """Read from a cursor, at the first refresh or after a seek."""
        self.incarnation = cursor.incarnation
        self.reading.begin_at(cursor.mark_delete)
        self.drained = self.done = False
        self._takers = frozenset()

    def wake_if_retiring(self) -> None:
        """Look whether the consumers have acknowledged everything; an open transaction holds the rest."""
        if self.retiring:
            self.woken.set()

    async def run(self) -> None:
        """Read and deliver in an endless loop."""
        reading = self.reading
        while True:
            self.woken.clear()
            if reading.failure is not None:
                reading.raise_failure()
            if self._deliveries.delayed.count:
                self._deliveries.release_due(self._environment.now_ms())
            if self.retiring:
                if self.is_quiet:
                    self._consumers.notify(lambda listener: listener.progressed())
            elif self._deliveries.waiting and self._consumers.offer(self.incarnation) and self._deliveries.waiting:
                self.woken.set()
            may_read = self._may_read()  # later changes of this condition set the wake event
            page = await reading.read() if may_read and not reading.at_end else None
            if page is not None and self.cursor is not None:
                reading.take(page, self.cursor, self.open_acks)
                continue
            if reading.skipped or not self._deliveries.messages:
                await self._pass_by()
            if reading.sealed_end or self.drained:
                self._note_progress()
            if may_read:
                reading.watch(self.woken.set)
            await self._until_woken_or_due()

    async def _until_woken_or_due(self) -> None:
        """Wait for a change, or for the time at which a delayed message is due."""
        due_ms = self._deliveries.next_due_ms()
        if due_ms is None:
            await self.woken.wait()
        else:
            await first_completed(self.woken.wait(), self._environment.sleep_until(due_ms))

    def _may_read(self) -> bool:
        """Return whether consumers are attached, and fewer messages wait than may be read ahead."""
        if self.retiring or self.reading.sealed_end or not self._consumers.by_id or self.cursor is None:
            return False
        bounds, deliveries = self.reading.bounds, self._deliveries
        return (
            len(deliveries.waiting) < bounds.read_entries_max
            and deliveries.waiting_bytes < bounds.read_bytes_max
            and deliveries.delayed.count < bounds.delayed_messages_max
            and deliveries.delayed.size_bytes < bounds.delayed_bytes_max
            and len(self.cursor.deleted) < bounds.deleted_ranges_max
        )

    async def _pass_by(self) -> None:
        """Move the cursor past aborted entries and the ends of closed ledgers, which need no acknowledgment."""
        held, skipped, incarnation = len(self._deliveries.messages), self.reading.skipped, self.incarnation
        if self.cursor is None:
            return
        # Everything before the first held message is finished: a message is removed only when the cursor includes it.
        upto = self._deliveries.done_through(self.reading.upto)
        passed = bisect.bisect_right(skipped, upto)
        behind = not held and self.cursor.mark_delete < upto and (self.cursor.deleted or self.cursor.partial)
        if not passed and not behind:
            return
        await self._cursor_acks.write(incarnation, (Ack(upto, cumulative=True),))
        if incarnation == self.incarnation:
            del skipped[:passed]
        self._cursor_moved()

    def _note_progress(self) -> None:
        deliveries = self._deliveries
        drained = self.reading.sealed_end and not deliveries.waiting and not deliveries.delayed.count
        done = drained and not deliveries.messages
        takers = deliveries.consumers() if drained else frozenset()
        if (drained, done, takers) != (self.drained, self.done, self._takers):
            self.drained, self.done, self._takers = drained, done, takers
            self._consumers.notify(lambda listener: listener.progressed())
