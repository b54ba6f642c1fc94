"""The transaction buffer ``marker``."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import (
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    Unavailable,
)
from txnframework.interfaces import ISealableBuffer
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryPage,
    EntryRange,
    Isolation,
    Participant,
    Position,
    ReadableEntry,
    ReadRequest,
    SweepResult,
    Tail,
    Transaction,
    Visibility,
)
from txnframework.model.names import topic_of
from txnframework.plugin import AbortRetention, SegmentAppender, SegmentContext, foreign_data, options_as
from txnframework_legacy.admission import EnlistedBranches, FamilyRegistration
from txnframework_legacy.buffer.base import LogBuffer
from txnframework_legacy.buffer.group_append import GroupAppender
from txnframework_legacy.buffer.markers import Marker, marker_of, read_entry
from txnframework_legacy.buffer.sealed_topic import is_migrating, record_outcome
from txnframework_legacy.buffer.snapshots import SnapshotOptions, Snapshots
from txnframework_legacy.buffer.topic import TopicReader
from txnframework_legacy.ledger_names import SIDECAR, ledger_name
from txnframework_legacy.options import BufferOptions


@implementer(ISealableBuffer)
class MarkerBuffer(LogBuffer):
    """One topic as this process has read it."""

    def __init__(self, context: SegmentContext) -> None:
        super().__init__(context)
        options = options_as(context.options, BufferOptions)
        self._participant = Participant(context.segment)
        self._ledgers = context.ledgers
        self._store = context.store
        self._sidecar_name = ledger_name(SIDECAR, context.segment, context.life)
        self._environment = context.environment
        self._options = options
        self._snapshots = Snapshots(context.ledgers, context.segment, context.life, _snapshot_options(options))
        retention = AbortRetention(context.environment, context.transactions.abort_retention_ms)
        self._topic = TopicReader(context.ledger, self._snapshots, retention, options.snapshot_entries)
        self._topic_name = context.topic or str(topic_of(context.segment))
        registration = FamilyRegistration(context.store, self._topic_name, options.attempts_max)
        admission = EnlistedBranches(
            context.segment, context.ledger, context.coordinator, registration, options.branches_max
        )
        self._group_appender = GroupAppender(context.ledger, options.append_entries_max, options.append_bytes_max)
        self._appender = SegmentAppender(
            context.ledger,
            admission,
            self._visibility_of_copy,
            retention,
            options.attempts_max,
            self._group_appender.append,
        )

    async def _catch_up(self) -> Tail:
        return await self._topic.catch_up()

    def _readable(self) -> Position:
        return self._topic.state.readable()

    async def _read_first(self) -> None:
        await self._require_without_sidecar()
        await self._catch_up()

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """Publish entries of one branch, or entries outside transactions."""
        await self.recover()
        return await self._appender.append(entries)

    async def read(self, request: ReadRequest) -> EntryPage:
        """Return the readable entries after a position; markers are skipped."""
        await self.recover()
        after = request.after.entry
        uncommitted = request.isolation is Isolation.READ_UNCOMMITTED
        if uncommitted or after >= self._topic.state.readable():
            await self._topic.catch_up()
        state = self._topic.state
        upto = state.upto if uncommitted else state.readable()
        if after >= upto:
            return EntryPage((), request.after)
        aborted, late = state.aborted, state.late  # as before the fetch; a concurrent trim may shrink both
        entries = await self._topic_ledger.read(EntryRange(after, upto), request.limit)
        shown: list[ReadableEntry] = []
        skipped: list[Position] = []
        for entry in entries:
            found = read_entry(entry, self.segment)
            if isinstance(found, Marker):
                skipped.append(entry.position)
                continue
            visibility = Visibility.COMMITTED
            if found is not None and (found in aborted or entry.position in late):
                visibility = Visibility.ABORTED
            elif found is not None and found.txn_id in state.writing and entry.position > state.readable():
                visibility = Visibility.OPEN
            if uncommitted or visibility is Visibility.COMMITTED:
                shown.append(ReadableEntry(entry.position, entry.data, found, visibility))
            else:
                skipped.append(entry.position)
        return EntryPage(tuple(shown), entries[-1].position if entries else upto, tuple(skipped))

    async def resolve(self, branch: Branch) -> Visibility:
        """Return the visibility of a branch from the topic's state, or from its coordinator if the topic has none."""
        await self.recover()
        await self._topic.catch_up()
        state = self._topic.state
        known = state.of_branch(branch)
        if known is not None:
            return known
        marker = state.marked.get(branch.txn_id)
        if marker is not None:
            return Visibility.COMMITTED if marker.counts(branch.number) else Visibility.ABORTED
        return await self._describe_visibility(branch)

    async def settle(self, ended: Transaction) -> None:
        """
        Append the marker unless it is stored already.

        A transaction that does not name this topic as a participant has its marker here already. After a crash behind
        the append, the marker is appended again; the first one decides.

        On a topic that was sealed by a migration, abort records are stored instead.

        :raises Unavailable: the topic is sealed for another reason, or its open ledger changed too often.
        """
        await self.recover()
        tail = await self._topic.catch_up()
        if self._participant not in ended.participants or ended.txn_id in self._topic.state.marked:
            return
        if ended.txn_id not in self._topic.state.writing:
            await self._require_without_sidecar()
        for _ in range(self._options.attempts_max):
            try:
                await self._group_appender.append((marker_of(ended, self._environment.now_ms()),), tail.open_ledger_id)
            except LedgerClosed:
                tail = await self._topic_ledger.tail()
                continue
            except LedgerSealed as error:
                if await is_migrating(self._store, self._topic_name):
                    await self._record_outcome(ended)
                    return
                raise Unavailable(
                    f"{self.segment} is sealed, so the marker of transaction {ended.txn_id} cannot be written to it"
                ) from error
            await self._topic.catch_up()
            return
        raise Unavailable(f"the open ledger of {self.segment} changes too often")

    async def trim(self, ledger_id: int) -> SweepResult:
        """Trim whole ledgers in which all entries are decided."""
        await self.recover()
        tail = await self._topic.catch_up()
        state = self._topic.state
        # If no transaction is open, all ledgers that are closed now are completely decided.
        below = min(ledger_id, state.readable().ledger_id if state.writing else tail.open_ledger_id)
        (before,) = await self._topic_ledger.ledgers(-1, 1)
        first = await self._topic_ledger.trim(below, state.aborted_before(below))
        self._topic.trimmed(first)
        return SweepResult(int(first > before.ledger_id), int(first < below))

    async def close(self) -> None:
        """Stop; calls that wait raise ``Closed``."""
        self._closed.set()
        await self._snapshots.close()

    async def _record_outcome(self, ended: Transaction) -> None:
        # Read again after the seal: entries may have been appended since the last reading.
        await self._topic.catch_up()
        written = self._topic.state.writing.get(ended.txn_id)
        if written is not None:
            await record_outcome(self._store, self._topic_ledger, ended, written)

    async def _require_without_sidecar(self) -> None:
        """
        Refuse a topic that was written through the other buffer of this family.

        A marker in the topic would end its transactions without their messages, which are stored in the sidecar.
        """
        try:
            sidecar = await self._ledgers.open(self._sidecar_name)
        except LedgerNotFound:
            return
        await sidecar.close()
        raise foreign_data(self.segment, "messages of transactions in a sidecar", "the buffer sidecar")

    async def _visibility_of_copy(self, branch: Branch, position: Position) -> Visibility:
        """Return the visibility of an earlier copy of an entry."""
        await self._topic.catch_up()
        if position in self._topic.state.late:
            return Visibility.ABORTED
        return await self.resolve(branch)


def _snapshot_options(options: BufferOptions) -> SnapshotOptions:
    segment_branches = options.snapshot_segment_branches if options.segmented_snapshots else None
    return SnapshotOptions(segment_branches, options.snapshot_entry_bytes_max)
