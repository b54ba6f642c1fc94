"""The changes of a restore: ids, open transactions, and references beyond the end of a segment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import UNSET

from txnframework.broker.coordination import scan_records
from txnframework.broker.host import Host
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidTransactionState,
    LedgerNotFound,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model import index_keys, layout, paths, records
from txnframework.model.cursor import Cursor, from_record, to_record
from txnframework.model.entry_ranges import EntryRanges
from txnframework.model.entry_view import EntryView
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT, Branch, TxnID
from txnframework.model.indexes import (
    ACKS_BY_SEGMENT_SUBSCRIPTION,
    WRITES_BY_SEGMENT,
    abort_bound,
    abort_indexes,
)
from txnframework.model.ledger import Tail
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.names import PERSISTENT, TOPIC
from txnframework.model.partial_entries import PartialEntries
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework.model.transactions import Action, End, OpenQuery, State

IDS_SKIPPED = 1_000_000
"""
The count of numbers that are skipped beyond the highest known one: some were assigned and left no trace in either
store.
"""
PAGE = Limit(500)
SEGMENTS = ("segment://", "persistent://")
NAMES_MAX = 100
"""The most names per list in a report that an operator should check."""


@dataclass(slots=True)
class Counts:
    """
    The number of changes of a restore.

    ``segments_unknown``: ledgers that no topic names; their data is not lost, but unreachable. ``segments_sealed``:
    active segments that are sealed because they were split after the backup; split them again.
    """

    transactions_aborted: int = 0
    coordinators_skipped: int = 0
    segments_made: int = 0
    branches_aborted: int = 0
    cursors_moved: int = 0
    abort_records_dropped: int = 0
    intents_dropped: int = 0
    compactions_dropped: int = 0
    segments_unknown: list[str] = field(default_factory=list)
    segments_sealed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UndecidedEntries:
    """
    Entries appended since ``after_ms`` are committed only if a header says so; ``trust_headers`` False: no header
    counts.
    """

    after_ms: int
    trust_headers: bool


class Reconciliation:
    """
    Makes the metadata store consistent with the ledgers. Every step may be repeated.

    No other process uses the stores, so they can be read in any order. In a pair that is in use, the order would
    matter.
    """

    def __init__(
        self, host: Host, undecided: UndecidedEntries | None, dry_run: bool, progress: Callable[[str], None]
    ) -> None:
        self._host = host
        self._store = host.metadata
        self._ledgers = host.ledgers
        self._undecided = undecided
        self._dry_run = dry_run
        self._progress = progress
        self._counts = Counts()

    async def run(self) -> Counts:
        """Run all steps; return the number of changes."""
        await self._skip_ids()
        named = await self._check_topics()
        for prefix in SEGMENTS:
            async for name in self._names(prefix):
                if name not in named:
                    _note(self._counts.segments_unknown, name)
                await self._reconcile(name, await self._ledgers.open(name))
        # Last, because one family settles the participants when it aborts, and a cursor beyond its segment's end is not
        # opened.
        await self._abort_open()
        return self._counts

    # -- transactions ---------------------------------------------------------------------------------

    async def _skip_ids(self) -> None:
        """Reserve ids, so that the next ones are beyond all ids that were assigned."""
        # Also for coordinators that neither store knows: transactions that began there may have left no trace.
        highest: dict[int, int] = {}
        for first in (0, LOG_FAMILY_BIT):  # also of a family that is not installed here
            highest |= dict.fromkeys(range(first, first + self._host.config.transactions.coordinators), 0)
        highest |= await self._ledgers.highest_txn_numbers()
        async for record in scan_records(self._store, paths.ids_range()):
            highest.setdefault(paths.coordinator_of(record.key.path), 0)
        for coordinator, number in sorted(highest.items()):
            key = paths.ids_key(coordinator)
            found = await self._store.get(key)
            reserved = 0 if found is None else records.decode(records.IdBlock, found).next
            block = records.IdBlock(next=max(reserved, number + 1) + IDS_SKIPPED)
            self._progress(f"coordinator {coordinator} continues with number {block.next}")
            self._counts.coordinators_skipped += 1
            expected = Expect.ABSENT if found is None else found.version
            await self._write(partial(self._store.put, Put(key, records.encode(block), expected)))

    async def _abort_open(self) -> None:
        """Abort every open transaction, because its entries or records may be lost."""
        for coordinator in await self._host.coordinators():
            after: TxnID | None = None
            while page := await coordinator.list_open(OpenQuery(after=after, limit=PAGE)):
                for one in page:
                    self._counts.transactions_aborted += 1
                    await self._write(partial(self._abort, coordinator, one.txn_id))
                after = page[-1].txn_id
        self._progress(f"{self._counts.transactions_aborted} open transactions are aborted")

    async def _abort(self, coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
        try:
            await coordinator.end(End(txn_id, Action.ABORT, operator=True))
        except (InvalidTransactionState, TransactionNotFound, EndTransactionTimeout):
            return  # ended already; or decided now, and a sweep settles the remaining participants

    # -- topics ---------------------------------------------------------------------------------------

    async def _check_topics(self) -> set[str]:
        """Create the missing segments of all topics; return the names of all segments."""
        named: set[str] = set()
        for domain in (TOPIC, PERSISTENT):
            async for record in scan_records(self._store, paths.topics_range(domain=domain)):
                topic = paths.topic_of(record.key.path)
                found = layout.from_record(topic, records.decode(records.TopicRecord, record))
                for segment in () if found.deleted else found.segments.values():
                    name = str(found.name_of(segment.id))
                    named.add(name)
                    await self._make(name, segment.state)
                if found.starting and not found.deleted:
                    await self._limit_starts(record, found)
        return named

    async def _limit_starts(self, record: Record, found: layout.Layout) -> None:
        """Let subscriptions whose cursors are not created yet begin at the end of a segment, if not before it."""
        starting = {}
        for subscription, starts in found.starting.items():
            ends = {segment_id: await self._end_of(str(found.name_of(segment_id))) for segment_id in starts}
            starting[subscription] = {segment_id: min(at, ends[segment_id]) for segment_id, at in starts.items()}
        if starting != found.starting:
            limited = layout.to_record(replace(found, starting=starting))
            await self._write(partial(self._store.put, Put(record.key, records.encode(limited), record.version)))

    async def _end_of(self, name: str) -> Position:
        try:
            return (await (await self._ledgers.open(name)).tail()).end
        except LedgerNotFound:  # it is only planned to be created
            return EARLIEST

    async def _make(self, name: str, state: layout.SegmentState) -> None:
        """Create a missing segment, sealed if other segments replaced it; note an active segment that is sealed."""
        try:
            ledger = await self._ledgers.open(name)
        except LedgerNotFound:
            self._counts.segments_made += 1
            self._progress(f"{name} is missing and is created again, empty")
            if self._dry_run:
                return
            ledger = await self._ledgers.create(name)
        sealed = (await ledger.tail()).sealed
        if state is layout.SegmentState.REPLACED and not sealed:
            await self._write(ledger.seal)
        elif state is layout.SegmentState.ACTIVE and sealed:
            _note(self._counts.segments_sealed, name)

    # -- one segment ----------------------------------------------------------------------------------

    async def _reconcile(self, name: str, ledger: IManagedLedger) -> None:
        """Limit cursors, abort records and intents of a segment to its end, and decide its undecided entries."""
        self._progress(f"checking {name}")
        tail = await ledger.tail()
        end = tail.end
        beyond = await self._acknowledged_beyond(name, end)
        async for record in scan_records(self._store, paths.cursors_range(name)):
            await self._move_back(record, end, beyond)
        async for record in scan_records(self._store, paths.abort_records_range(name)):
            _, ledger_id, _, _ = paths.abort_record_of(record.key.path)
            if abort_bound(ledger_id, records.decode(records.AbortRecord, record)) > end:
                self._counts.abort_records_dropped += 1
                await self._drop(record)
        async for record in scan_records(self._store, index_keys.prefix_range(WRITES_BY_SEGMENT, name)):
            operation = records.decode_operation(record)
            if not isinstance(operation, records.WriteOperation) or operation.segment != name:
                continue
            if max(Position.parse(operation.after), Position(operation.ledger, -1)) > end:
                # Its entries would be beyond the end, so there are none.
                self._counts.intents_dropped += 1
                await self._drop(record)
        await self._drop_compaction(name, end)
        await self._decide_returned(name, ledger, tail)
        if self._undecided is not None:
            after = await ledger.find_time(self._undecided.after_ms)
            await self._decide(name, ledger, self._undecided, EntryRange(after, tail.last_confirmed))

    async def _acknowledged_beyond(self, name: str, end: Position) -> set[tuple[str, int]]:
        """Return the subscriptions, with incarnations, that have unsettled acknowledgments beyond the end."""
        found: set[tuple[str, int]] = set()
        async for record in scan_records(self._store, index_keys.prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, name)):
            operation = records.decode_operation(record)
            if not isinstance(operation, records.AckOperation) or operation.segment != name:
                continue
            if any(Position.parse(ack.position).entry > end for ack in operation.acks):
                found.add((operation.subscription, operation.incarnation))
        return found

    async def _move_back(self, record: Record, end: Position, beyond: set[tuple[str, int]]) -> None:
        """
        Move a cursor back to the end of its segment, if it, an unsettled acknowledgment or a delivery is beyond the
        end.

        The cursor begins a new incarnation, so that earlier acknowledgments and delivery counts have no effect: their
        positions may be used again.
        """
        name, subscription = paths.cursor_of(record.key.path)
        cursor = from_record(records.decode(records.CursorRecord, record))
        clamped = clamp(cursor, end)
        is_beyond = clamped != cursor or (subscription, cursor.incarnation) in beyond
        if not (is_beyond or await self._delivered_beyond(name, subscription, end)):
            return
        self._counts.cursors_moved += 1
        moved = replace(clamped, incarnation=cursor.incarnation + 1)
        put = Put(record.key, records.encode(to_record(moved)), record.version)
        await self._write(partial(self._store.put, put))

    async def _delivered_beyond(self, name: str, subscription: str, end: Position) -> bool:
        """Return whether a message beyond the end of its segment was delivered, and its deliveries are counted."""
        record = await self._store.get(paths.delivery_counts_key(name, subscription))
        if record is None:
            return False
        document = records.decode(records.DeliveryCountsRecord, record)
        presumed = () if document.presumed is UNSET else document.presumed.values()
        return any(Position.parse(at).entry > end for at in (*document.counts, *document.handed_out, *presumed))

    async def _drop_compaction(self, name: str, end: Position) -> None:
        """Forget the compaction of a segment if it contains messages beyond the end, or if its ledgers are missing."""
        record = await self._store.get(paths.compacted_key(name))
        if record is None:
            return
        document = records.decode(records.CompactedRecord, record)
        try:
            for compacted in filter(None, (document.ledger, *document.further)):
                await (await self._ledgers.open(compacted)).close()
            if Position.parse(document.upto) <= end:
                return
        except LedgerNotFound:
            pass
        self._counts.compactions_dropped += 1
        self._progress(f"the compaction of {name} is dropped")
        # The number of the attempt stays, because the name of its ledger may exist.
        kept = records.CompactedRecord(attempt=document.attempt)
        await self._write(partial(self._store.put, Put(record.key, records.encode(kept), record.version)))

    async def _decide_returned(self, name: str, ledger: IManagedLedger, tail: Tail) -> None:
        """
        Decide entries that were trimmed and exist again: their abort records were collected, so their outcome is
        unknown.

        Committed entries among them are aborted too. Retention had released these entries, and no data distinguishes
        them from aborted ones.
        """
        record = await self._store.get(paths.trimmed_key(name))
        trimmed = None if record is None else records.decode(records.TrimmedRecord, record)
        if record is None or trimmed is None or not (trimmed.collected or trimmed.ledger):
            return
        returned = EntryRange(EARLIEST, min(Position(trimmed.collected, -1), tail.last_confirmed))
        await self._decide(name, ledger, UndecidedEntries(0, trust_headers=True), returned)
        if max(trimmed.collected, trimmed.ledger) > tail.open_ledger_id:
            # The ids of later ledgers will be used again, for other ledgers.
            until = min(trimmed.collected, tail.open_ledger_id), min(trimmed.ledger, tail.open_ledger_id)
            kept = records.TrimmedRecord(collected=until[0], ledger=until[1], at_ms=trimmed.at_ms)
            await self._write(partial(self._store.put, Put(record.key, records.encode(kept), record.version)))

    async def _decide(
        self, name: str, ledger: IManagedLedger, undecided: UndecidedEntries, entries: EntryRange
    ) -> None:
        """
        Record as aborted those branches of these entries that nothing shows to be committed.

        Branches of the log family are left alone: their outcome is in the ledgers, beside their entries.
        """
        judged: set[tuple[int, Branch]] = set()
        after = entries.after
        while found := await ledger.read(EntryRange(after, entries.upto), PAGE):
            for entry in found:
                branch = EntryView(entry.data, entry.position).branch
                if branch is None or branch.txn_id.family == LOG_FAMILY:
                    continue
                if (entry.position.ledger_id, branch) not in judged:
                    judged.add((entry.position.ledger_id, branch))
                    if not (undecided.trust_headers and await self._is_committed(branch)):
                        await self._record_aborted(name, branch, entry.position)
            after = found[-1].position

    async def _is_committed(self, branch: Branch) -> bool:
        """Return whether a header says that a branch counts."""
        found = await self._store.get(paths.header_key(branch.txn_id))
        if found is None:
            return False
        header = records.decode(records.TransactionHeader, found)
        return header.state == State.COMMITTED.value and branch.number in (header.branches or ())

    async def _record_aborted(self, name: str, branch: Branch, first: Position) -> None:
        """Write an abort record for a branch in the ledger of its first entry, unless there is one."""
        key = paths.abort_record_key(name, first.ledger_id, branch.txn_id, branch.number)
        if await self._store.get(key) is not None:
            return
        self._counts.branches_aborted += 1
        document = records.AbortRecord(after=str(Position(first.ledger_id, first.entry_id - 1)))
        indexes = abort_indexes(name, first.ledger_id, document)
        await self._write(partial(self._store.put, Put(key, records.encode(document), Expect.ABSENT, indexes)))

    # -- steps ----------------------------------------------------------------------------------------

    async def _names(self, prefix: str) -> AsyncIterator[str]:
        after = ""
        while page := await self._ledgers.list_names(prefix, after, PAGE.items):
            for name in page:
                yield name
            after = page[-1]

    async def _drop(self, record: Record) -> None:
        await self._write(partial(self._store.delete, record.key, record.version))

    async def _write(self, change: Callable[[], Awaitable[object]]) -> None:
        if self._dry_run:
            return
        try:
            await change()
        except VersionMismatch as error:
            raise Unavailable("another process is working on the stores; stop it, and repeat this") from error


def _note(names: list[str], name: str) -> None:
    """Add a name for an operator to check, unless the list is full."""
    if len(names) < NAMES_MAX:
        names.append(name)


def clamp(cursor: Cursor, end: Position) -> Cursor:
    """Return the cursor without acknowledgments beyond the end of its segment."""
    deleted = EntryRanges.of((first, min(last, end)) for first, last in cursor.deleted if first <= end)
    partial = PartialEntries.of({position: done for position, done in cursor.partial.items() if position <= end})
    return replace(cursor, mark_delete=min(cursor.mark_delete, end), deleted=deleted, partial=partial)
