"""One process's knowledge about which entries of one segment may be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from txnframework.errors import lost_end
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import WRITES_BY_SEGMENT
from txnframework.model.ledger import LedgerEntry, Tail
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import WriteOperation
from txnframework.model.transactions import State, Transaction
from txnframework.runtime.tasks import start_task
from txnframework_metadata.buffer.abort_records import highest_abort_bound
from txnframework_metadata.buffer.entry_reader import ReadAhead
from txnframework_metadata.buffer.visibility import Intent, KnownOutcomes, Seen, seen, undecided
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.headers import read_header
from txnframework_metadata.records.operations import scan_index_all
from txnframework_metadata.records.views import operation_of


class Following(msgspec.Struct, frozen=True):
    """
    A caller waits for entries.

    ``watch`` arms a watch on the header of a transaction. It returns the ended transaction if the watch already
    reported its end, otherwise the transaction as open. ``carries_values``: whether the watch would report the end.
    ``appended``: every change of the tail since the last reading began, or more; None if that is not known.
    """

    watch: Callable[[TxnID], Awaitable[Transaction]]
    carries_values: bool = False
    appended: tuple[LedgerEntry, ...] | None = None


class SegmentSnapshot(msgspec.Struct, frozen=True):
    """
    One reading of the segment: its tail, its intents, their headers as far as needed, and the resulting max read
    position.

    ``followed``: the transaction whose header was watched before it was read. ``is_whole``: the intents are all that
    were stored, and not only the writers of entries after the announced position. ``is_presumed``: a header was not
    read, because its transaction can have ended no longer ago than the watch takes to report it.
    """

    tail: Tail
    intents: list[Intent]
    headers: dict[TxnID, Transaction | None]
    seen: Seen
    followed: TxnID | None = None
    is_whole: bool = True
    is_presumed: bool = False


class SegmentView:
    """
    Reads the ledger's tail, the intents and their headers, and announces the max read position.

    Abort records are looked up later, when entries are fetched. This order is the rule. An intent is written before its
    entry, so a process that reads the tail first finds the intent of every entry up to it. An intent is removed only
    after its abort record is stored, so a process that reads abort records last finds one or the other. The cost of a
    reading depends on the open transactions, not on earlier aborted ones.

    Two shortcuts reduce the delay before an entry reaches a waiting caller. First, entries are read together with the
    tail. If they are all entries since the announced position, they name their writers themselves, and no other intent
    matters. The headers of those writers are read, and no intents. (An intent that was not read blocks nothing here,
    because its entries come after this tail.) Second, only the headers are read again for the same tail and writers.
    This equals a reading that was slow before its third step. So a transaction that blocked reading costs one read of
    its header when it ends.

    ``announced`` never moves back: a late intent may name an earlier position, but has no entries before ``announced``.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        ledgers: ILedgerStore,
        store: IMetadataStore,
        options: BufferOptions,
        ahead: ReadAhead,
    ) -> None:
        self.segment = segment
        self.announced: Position | None = None
        self.latest: SegmentSnapshot | None = None
        self.outcomes = KnownOutcomes(options.outcomes_max)
        self._ledger = ledger
        self._ledgers = ledgers
        self._store = store
        self._options = options
        self._ahead = ahead
        self._lock = asyncio.Lock()
        self._begun = 0
        self._finished = 0
        self._finished_reading = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def begun(self) -> int:
        """The number of readings that have begun."""
        return self._begun

    def begun_after(self, count: int) -> SegmentSnapshot | None:
        """Return the last reading if it began after ``count`` others had begun, otherwise None."""
        return self.latest if self._finished > count else None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each reading."""
        self._listeners.append(listener)

    async def check_belonging(self) -> None:
        """
        Raise StoreMismatch if the ledger ends before a position that the metadata store names.

        The metadata store is read before the ledger's end, which only grows. A healthy, busy pair of stores is
        therefore never mistaken for a pair of which one store was restored.
        """
        # Only abort records beyond the ledger's end as read before them can be beyond its end after them. There are
        # hardly any, unless the stores do not match.
        before = (await self._ledger.tail()).end
        bounds = [max(intent.after, Position(intent.ledger_id, -1)) for intent in await self._intents()]
        recorded = await highest_abort_bound(self._store, self.segment, before, self._options.page_records)
        furthest = max([*bounds, *([] if recorded is None else [recorded])], default=EARLIEST)
        end = (await self._ledger.tail()).end
        if furthest > end:
            raise lost_end(f"an announced write or an abort record names {furthest}", self.segment, end)

    async def refresh(self, following: Following | None = None) -> SegmentSnapshot:
        """
        Return a reading that began after this call. Concurrent callers share one reading.

        :param following: a caller waits for the entries, so they are read ahead unless a watch reported them. The
            header of the first entry's writer is watched, because that transaction blocks reading if any does.
        """
        ticket = self._begun
        async with self._lock:
            if self.latest is None or self._finished_reading <= ticket:
                self._begun += 1
                number = self._begun
                told = None if following is None else self._told_tail(following.appended)
                self.latest = await self._read(following, told)
                self._finished = number
                # A reported tail is as old as the report: it does not serve a caller that asks for the current state.
                if told is None:
                    self._finished_reading = number
            reading = self.latest
        self._tell()
        return reading

    async def look_again(self, told: Transaction | None = None) -> SegmentSnapshot:
        """
        Return the last reading with the current headers of the transactions that were open in it.

        :param told: a transaction that is known to have ended, so that its header need not be read.
        """
        async with self._lock:
            latest = self.latest
            if latest is None:
                latest = await self._read(None, None)
            ended = {txn_id: header for txn_id, header in latest.headers.items() if not _is_open(header)}
            if told is not None:
                ended[told.txn_id] = told
            self.latest = reading = await self._decided(latest.tail, latest.intents, ended, is_whole=latest.is_whole)
        self._tell()
        return reading

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def _read(self, following: Following | None, told: Tail | None) -> SegmentSnapshot:
        """Read in the order of the rule, store the results, and announce; ``told``: the tail, if it is known."""
        announced = self.announced
        if following is None or announced is None:
            return await self._decided(await self._ledger.tail(), await self._intents(), {})
        if told is None:
            tail, _ = await asyncio.gather(self._ledger.tail(), self._ahead.read_on(announced))
        else:
            tail = told
        intents = self._ahead.written(announced, tail.last_confirmed)
        if intents is None or self.outcomes.unsettled >= self._options.outcomes_max:
            found, (headers, followed) = await asyncio.gather(self._intents(), self._headers_ahead(following))
            return msgspec.structs.replace(await self._decided(tail, found, headers), followed=followed)
        presumed = None if told is None else await self._presumed(following)
        headers, followed = presumed or await self._headers_ahead(following)
        reading = await self._decided(tail, intents, headers, is_whole=False)
        return msgspec.structs.replace(
            reading, followed=followed, is_presumed=presumed is not None and reading.seen.pin is not None
        )

    def _told_tail(self, appended: tuple[LedgerEntry, ...] | None) -> Tail | None:
        """Return the last tail with the appended entries, and hold those entries; None if the tail has to be read."""
        if self.latest is None or self.announced is None or not appended:
            return None
        before = self.latest.tail
        after, came = grown_by(before, appended)
        if after is not None:
            self._ahead.take(self.announced, before.last_confirmed, came)
        return after

    async def _decided(
        self, tail: Tail, intents: list[Intent], headers: dict[TxnID, Transaction | None], *, is_whole: bool = True
    ) -> SegmentSnapshot:
        """Read the headers missing from ``headers``, as far as they matter, and announce."""
        while wanted := undecided(intents, headers, self.announced, self._options.headers_together_max):
            headers.update(await self._headers(wanted))
        result = seen(tail.last_confirmed, intents, headers)
        # No await between this and the announcement, so that a caller sees both or neither.
        self.outcomes.observe(result.aborted, result.counted, is_whole=is_whole)
        self.announced = result.max_read if self.announced is None else max(self.announced, result.max_read)
        return SegmentSnapshot(tail, intents, headers, result, is_whole=is_whole)

    async def _presumed(self, following: Following) -> tuple[dict[TxnID, Transaction | None], TxnID] | None:
        """
        Return the state of the one transaction that wrote the reported entries, as its watch reports it.

        None means that headers have to be read.
        """
        wanted = {branch.txn_id for branch in self._ahead.branches()}
        if len(wanted) != 1 or not following.carries_values or not self._options.open_presumed_ms:
            return None
        (txn_id,) = wanted
        return {txn_id: await following.watch(txn_id)}, txn_id

    async def _headers_ahead(self, following: Following) -> tuple[dict[TxnID, Transaction | None], TxnID | None]:
        """Return the stored headers of the writers of the entries read ahead, and the transaction that is watched."""
        branches = self._ahead.branches()
        wanted = list(dict.fromkeys(branch.txn_id for branch in branches))[: self._options.headers_together_max]
        if not wanted:
            return {}, None
        watching = start_task(following.watch(wanted[0]))
        await asyncio.sleep(0)
        # If arming the watch needs a request, the headers are read concurrently.
        followed = wanted[0] if watching.done() else None
        try:
            _, found = await asyncio.gather(watching, self._headers(wanted))
        finally:
            # A caller whose reading fails closes its watches, so none may be armed after this call.
            if not watching.done():
                await asyncio.wait({watching})
        # A missing header decides nothing yet: its intent may have been removed before it, or together with it.
        headers = {txn_id: header for txn_id, header in found.items() if header is not None}
        for branch in branches:
            header = headers.get(branch.txn_id)
            if header is not None and not _is_open(header):
                self.outcomes.note([branch], aborted=not header.counts(branch.number))
        return {**headers}, followed

    async def _headers(self, wanted: list[TxnID]) -> dict[TxnID, Transaction | None]:
        """Return the current headers of some transactions."""
        found = await asyncio.gather(*(read_header(self._store, txn_id) for txn_id in wanted))
        return {
            txn_id: None if header is None else header.transaction for txn_id, header in zip(wanted, found, strict=True)
        }

    async def _intents(self) -> list[Intent]:
        """Return the write operations on this segment, ordered by the position that their entries follow."""
        entries = index_keys.prefix_range(WRITES_BY_SEGMENT, self.segment)
        found = []
        for record in await scan_index_all(self._store, entries, self._options.page_records):
            operation = operation_of(record)
            document = operation.document
            if isinstance(document, WriteOperation) and document.segment == self.segment:
                found.append(Intent(operation.branch, document.ledger, Position.parse(document.after)))
        return sorted(found, key=lambda intent: intent.after)


def grown_by(tail: Tail, appended: Sequence[LedgerEntry]) -> tuple[Tail | None, list[LedgerEntry]]:
    """Return a tail with the entries appended after it, and those entries; None if others lie between them."""
    last, came = tail.last_confirmed, []
    for entry in appended:
        if entry.position > last:
            following = last.entry_id + 1 if last.ledger_id == tail.open_ledger_id else 0
            if tail.sealed or entry.position != Position(tail.open_ledger_id, following):
                return None, []
            last = entry.position
            came.append(entry)
    return msgspec.structs.replace(tail, last_confirmed=last), came


def _is_open(header: Transaction | None) -> bool:
    """Return whether a transaction is open."""
    return header is not None and header.state is State.OPEN
