"""Reading of a segment ahead of a subscription's consumers, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.segments import OpenSegment
from txnframework.config import SubscriptionsSection
from txnframework.errors import EntryTrimmed
from txnframework.model.cursor import Cursor
from txnframework.model.entries import EntryView
from txnframework.model.positions import EARLIEST, Limit, Position
from txnframework.model.reads import EntryPage, ReadRequest
from txnframework.runtime.tasks import start_task


class ReadAhead:
    """
    Reads committed messages through the segment's buffer into ``deliveries``.

    * ``upto``: everything up to here was read.
    * ``skipped``: aborted entries that the cursor has not passed yet.
    * ``sealed_end``: the segment has nothing after ``upto``, and never will.
    * ``at_end``: nothing after ``upto`` can be read until ``until_advanced`` has returned.
    * ``failure``: the error of ``watch``, until it is raised by ``raise_failure``.

    The outcome of an entry is decided when it is read here; an entry that was read as committed stays committed.
    """

    def __init__(self, segment: OpenSegment, deliveries: Deliveries, bounds: SubscriptionsSection) -> None:
        self.upto = EARLIEST
        self.skipped: list[Position] = []
        self.sealed_end = False
        self.at_end = False
        self.failure: Exception | None = None
        self._buffer = segment.buffer
        self._ledger = segment.ledger
        self.deliveries = deliveries
        self.bounds = bounds
        self._begun = 0
        self._watch: asyncio.Task[None] | None = None

    def begin_at(self, position: Position) -> None:
        """Continue reading from this position, and drop the state of earlier reads."""
        self.stop_watching()
        self._begun += 1
        self.upto = position
        self.skipped.clear()
        self.sealed_end = self.at_end = False

    async def read(self) -> EntryPage | None:
        """Return the next page; None if nothing can be read now, or if reading was restarted meanwhile."""
        after, begun = self.upto, self._begun
        try:
            room_bytes = max(1, self.bounds.read_bytes_max - self.deliveries.waiting_bytes)
            page = await self._buffer.read(ReadRequest(after, Limit(self.bounds.read_entries_max, room_bytes)))
        except EntryTrimmed:
            # Trimmed before the subscription was created, or by an explicit rule: trimmed messages cannot be delivered.
            (left,) = await self._ledger.ledgers(-1, 1)
            page = EntryPage((), Position(left.ledger_id, -1))
        if begun != self._begun:
            return None
        if page.upto <= after and not page.entries:
            self.at_end = True
            return None
        return page

    def take(self, page: EntryPage, cursor: Cursor, open_acks: OpenAcks) -> None:
        """Add a page to the deliveries."""
        for entry in page.entries:
            view = EntryView(entry.data, entry.position, self._ledger.name)
            for index, message in enumerate(view.messages()):
                position = Position(entry.position.ledger_id, entry.position.entry_id, index)
                self.deliveries.read(
                    HeldMessage(position, view.count, message, view.producer, entry.branch), cursor, open_acks
                )
        self.skipped.extend(page.skipped)
        last = page.entries[-1].position if page.entries else page.upto
        self.upto = max(self.upto, page.upto, last)
        # After a full page there may be more. After a shorter one, reading again would only return an empty page.
        self.at_end = len(page.entries) + len(page.skipped) < self.bounds.read_entries_max

    async def until_advanced(self) -> None:
        """Wait until more can be read, or until the segment is known to have ended."""
        after, begun = self.upto, self._begun
        found = await self._buffer.advanced(after)
        if begun == self._begun:
            self.at_end = False
        if found <= after and begun == self._begun and self.upto == after:
            self.sealed_end = True

    def watch(self, woken: Callable[[], None]) -> None:
        """Call ``woken`` once ``until_advanced`` has returned or failed; do nothing if this is already running."""
        if self._watch is None:
            self._watch = start_task(self._run_watch(self._begun, woken))

    async def _run_watch(self, begun: int, woken: Callable[[], None]) -> None:
        failure: Exception | None = None
        try:
            await self.until_advanced()
        except Exception as error:
            failure = error
        if begun == self._begun:
            self._watch, self.failure = None, failure
            woken()

    def raise_failure(self) -> None:
        """Raise the error of ``watch``, if it failed; a second call does nothing."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def stop_watching(self) -> None:
        """Stop the task of ``watch``; a second call does nothing."""
        self.failure = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
