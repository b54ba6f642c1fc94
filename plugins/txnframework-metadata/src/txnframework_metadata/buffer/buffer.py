"""The transaction buffer ``metadata``: all writes to and all reads of one segment."""

from __future__ import annotations

import asyncio

from zope.interface import implementer

from txnframework.errors import Closed, StoreMismatch, Unavailable
from txnframework.interfaces import IAdoptingBuffer, IPlannableBuffer
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import Append, Appended
from txnframework.model.names import topic_of
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework.model.reads import (
    EntryPage,
    Isolation,
    ReadableEntry,
    ReadPlan,
    ReadRequest,
    Visibility,
)
from txnframework.model.transactions import SweepResult, Transaction
from txnframework.plugin import AbortRetention, SegmentAppender, SegmentContext, options_as
from txnframework_metadata.buffer.abort_records import branch_outcome, settle_writes
from txnframework_metadata.buffer.announcements import Announcements
from txnframework_metadata.buffer.entry_reader import OWN_FAMILY, EntryReader, ReadAhead
from txnframework_metadata.buffer.intents import Intents
from txnframework_metadata.buffer.retention import LedgerTrimmer
from txnframework_metadata.buffer.segment_view import SegmentView
from txnframework_metadata.buffer.visibility_times import VisibilityTimes
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.shared_operations import operations_shared_by
from txnframework_metadata.watches import first_of


@implementer(IPlannableBuffer, IAdoptingBuffer)
class MetadataBuffer:
    """
    One process's view of one segment.

    The state is the ledger, the intents, their headers and the abort records. The buffer can read all of it again. It
    may therefore be dropped at any point, and any number of buffers may serve one segment.
    """

    def __init__(self, context: SegmentContext) -> None:
        options = options_as(context.options, BufferOptions)
        self.segment: str = context.segment
        self._ledger = context.ledger
        self._ledgers = context.ledgers
        self._store = context.store
        self._environment = context.environment
        self._options = options
        self._retention = AbortRetention(context.environment, context.transactions.abort_retention_ms)
        self._ahead = ReadAhead(
            context.segment,
            context.ledger,
            self._retention,
            Limit(options.ahead_entries_max, options.ahead_bytes_max),
            OWN_FAMILY | set(context.settled_families),
        )
        self._view = SegmentView(context.segment, context.ledger, context.ledgers, context.store, options, self._ahead)
        if context.metrics is not None:
            VisibilityTimes(
                self._view, str(topic_of(context.segment)), context.metrics, context.environment, options.outcomes_max
            )
        self._announcements = Announcements(
            self._view, context.ledger, context.store, context.environment, options.open_presumed_ms
        )
        self._operations = operations_shared_by(context.coordinator, context.store, options.page_records)
        self._intents = Intents(context.segment, context.ledger, context.store, self._operations, options)
        self._appending = SegmentAppender(
            context.ledger,
            self._intents,
            self._resolve_copy,
            self._retention,
            options.attempts_max,
            appending=self._intents if self._intents.is_one_step else None,
        )
        self._trimming = LedgerTrimmer(
            context.segment,
            context.ledger,
            context.store,
            context.environment,
            context.transactions,
            options,
        )
        self._fetching = EntryReader(
            context.segment,
            context.ledger,
            self._ahead,
            context.store,
            self._view.outcomes,
            self._retention,
            options.page_records,
        )
        self._last_appended = EARLIEST
        self._recovering = asyncio.Lock()
        self._closed = asyncio.Event()

    async def recover(self) -> Position:
        """
        Check that ledger and metadata store belong together, and read the open transactions.

        Later calls return immediately.
        """
        self._require_open()
        async with self._recovering:
            if self._view.announced is None:
                await first_of([self._read_what_is_open(), self._closed.wait()])
                self._require_open()
                # Only now: operations are removed without a further look where a listener is. If this fails because
                # the stores do not belong together, the operations are the evidence and stay.
                self._operations.listen(self.segment, self._has_ended)
        self._require_open()  # closed meanwhile: callers that waited here must not continue to append
        return self._announced()

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """Append entries of one branch, or of no transaction."""
        if self._view.announced is None or self._closed.is_set():
            await self.recover()
        appended = await self._appending.append(entries)
        self._announcements.grown()
        return appended

    async def tail_seen(self) -> Position:
        """Return the last position that this process has seen or written."""
        latest = self._view.latest
        return self._last_appended if latest is None else max(self._last_appended, latest.tail.last_confirmed)

    async def appended_jointly(self, last: Position) -> None:
        """Look again for callers that wait for entries."""
        self._last_appended = max(self._last_appended, last)
        self._announcements.grown()

    async def read(self, request: ReadRequest) -> EntryPage:
        """Return the entries after a position that may be read."""
        if self._view.announced is None or self._closed.is_set():
            await self.recover()
        after = request.after.entry
        if request.isolation is Isolation.READ_UNCOMMITTED:
            return await self._read_uncommitted(after, request.limit)
        if after >= self._announced():
            await self._view.refresh()
        upto = self._announced()
        if after >= upto:
            return EntryPage((), request.after)
        fetched = await self._fetching.fetch(EntryRange(after, upto), upto, request.limit)
        kept: list[ReadableEntry] = []
        skipped: list[Position] = []
        for entry, branch in fetched.entries:
            if branch is not None and (branch in fetched.aborted or branch.is_control):
                skipped.append(entry.position)
            else:
                kept.append(ReadableEntry(entry.position, entry.data, branch, Visibility.COMMITTED))
        return EntryPage(tuple(kept), fetched.upto, tuple(skipped))

    async def max_read_position(self) -> Position:
        """Read the segment again, and return the announced max read position."""
        await self._ready()
        await self._view.refresh()
        return self._announced()

    async def advanced(self, beyond: Position) -> Position:
        """Wait until the max read position is beyond ``beyond``, or can never be."""
        await self._ready()
        return await self._announcements.beyond(beyond)

    async def finished(self, at: Position) -> bool:
        """Return whether the segment is sealed and has no entry after ``at``."""
        await self._ready()
        tail = await self._ledger.tail()
        return tail.sealed and tail.last_confirmed <= at

    async def plan(self, after: Position, upto: Position) -> ReadPlan:
        """Return a plan for a range whose end any process has announced."""
        await self._ready()
        if self._announced() < upto:
            reading = await self._view.refresh()
            if upto > reading.tail.last_confirmed:
                raise StoreMismatch(
                    f"a range ends at {upto}, but {self.segment} in ledger store {self._ledgers.identity} ends at"
                    f" {reading.tail.last_confirmed}; it was planned on another store, or this one was restored"
                )
        if self._announced() < upto:
            await self._wait_for(upto)
        await self._fetching.require_there(EntryRange(after.entry, upto))
        aborted = await self._fetching.aborted_between(after.ledger_id, upto.ledger_id)
        return ReadPlan(EntryRange(after, upto), aborted)

    async def resolve(self, branch: Branch) -> Visibility:
        """Return the outcome of a branch that wrote to this segment."""
        await self._ready()
        return await branch_outcome(self._store, self.segment, branch, None, self._ahead.families)

    async def settle(self, ended: Transaction) -> None:
        """
        Make an outcome take effect in this segment.

        Callers that wait for entries see it immediately.
        """
        await self._ready()
        self._has_ended(ended.txn_id)
        await settle_writes(self._store, self._operations, self._ledger, ended, self._options.page_records)

    async def trim(self, ledger_id: int) -> SweepResult:
        """Trim whole ledgers, then the abort records that are no longer needed."""
        await self._ready()
        reading = await self._view.refresh()
        # Use the transactions that are open now, not the announced position: a transaction must never lose entries that
        # it may still commit. If everything is decided up to the end, closed ledgers hold decided entries only.
        tail, decided = reading.tail, reading.seen.max_read
        below = min(ledger_id, tail.open_ledger_id if decided >= tail.last_confirmed else decided.ledger_id)
        # The ledger remembers sequences for longer than abort records are kept, so pass it the aborted branches now.
        # That reading decided everything in these ledgers, and no process can append to them any more.
        oldest = await self._ledger.ledgers(-1, 1)
        first_left = oldest[0].ledger_id if oldest else below
        aborted = await self._fetching.aborted_between(first_left, below - 1) if first_left < below else frozenset()
        self._ahead.drop()
        return await self._trimming.trim(below, aborted)

    async def close(self) -> None:
        """Close the buffer; waiting callers get Closed, also during a recovery that the stores do not answer."""
        self._closed.set()
        self._operations.ignore(self.segment, self._has_ended)
        await self._announcements.close()

    # -- steps ----------------------------------------------------------------------------------------

    def _has_ended(self, txn_id: TxnID) -> None:
        """Forget the intents of an ended transaction, and look again for callers that wait for its entries."""
        self._intents.forget(txn_id)
        self._announcements.kick()

    async def _ready(self) -> None:
        """Recover if necessary, or raise Closed; callers that wait here continue in the order of their calls."""
        if self._view.announced is None or self._closed.is_set():
            await self.recover()

    async def _read_what_is_open(self) -> None:
        await self._view.check_belonging()
        await self._view.refresh()

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"the buffer of {self.segment} was closed")

    def _announced(self) -> Position:
        """Return the announced position; call it after recovery only."""
        announced = self._view.announced
        if announced is None:
            raise Unavailable(f"the buffer of {self.segment} is not recovered")
        return announced

    async def _resolve_copy(self, branch: Branch, position: Position) -> Visibility:
        return await self._resolve_at(branch, position.ledger_id)

    async def _resolve_at(self, branch: Branch, ledger_id: int) -> Visibility:
        """Return the outcome of a branch with an entry in one ledger."""
        return await branch_outcome(self._store, self.segment, branch, ledger_id, self._ahead.families)

    async def _wait_for(self, upto: Position) -> None:
        """
        Wait until this process may read up to a position that another process announced.

        A late intent may name an earlier position, and this process then computes a lower one. The range was decided
        without that intent. But only a reading that reaches the position shows which entries are aborted.
        """
        deadline_ms = self._environment.now_ms() + self._options.plan_wait_ms_max
        just_before = Position(upto.ledger_id, upto.entry_id - 1)
        await first_of([self._announcements.beyond(just_before), self._environment.sleep_until(deadline_ms)])
        if self._announced() < upto:
            raise Unavailable(
                f"{self.segment} cannot be read up to {upto} yet: an open transaction has been in the way for"
                f" {self._options.plan_wait_ms_max} ms"
            )

    async def _read_uncommitted(self, after: Position, limit: Limit) -> EntryPage:
        """Return every entry with the outcome of its branch."""
        upto = (await self._view.refresh()).tail.last_confirmed
        if after >= upto:
            return EntryPage((), after)
        announced = self._announced()
        begun_ms = self._retention.monotonic_ms()
        fetched = await self._fetching.fetch(EntryRange(after, upto), announced, limit)
        shown: list[ReadableEntry] = []
        skipped: list[Position] = []
        for entry, branch in fetched.entries:
            if branch is not None and branch.is_control:
                skipped.append(entry.position)
                continue
            if branch in fetched.aborted:
                visibility = Visibility.ABORTED
            elif branch is None or entry.position <= announced:
                visibility = Visibility.COMMITTED
            else:
                visibility = await self._resolve_at(branch, entry.position.ledger_id)
            shown.append(ReadableEntry(entry.position, entry.data, branch, visibility))
        await self._fetching.require_there_since(EntryRange(after, upto), begun_ms)
        return EntryPage(tuple(shown), fetched.upto, tuple(skipped))
