"""What this process knows of what may be read of one segment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from txnframework.errors import StoreMismatch
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import WRITES_BY_SEGMENT
from txnframework.model.ledger import LedgerEntry, Tail
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import WriteOperation
from txnframework.model.transactions import State, Transaction
from txnframework_metadata.buffer.aborted import KnownOutcomes
from txnframework_metadata.buffer.ahead import Ahead
from txnframework_metadata.buffer.outcomes import highest_abort_bound
from txnframework_metadata.buffer.visibility import Intent, Seen, seen, undecided
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.operations import read_header, scan_index_all
from txnframework_metadata.records.views import operation_of


@dataclass(frozen=True, slots=True)
class Following:
    """
    Somebody waits for entries.

    ``watch``: watches the header of a transaction from when it returns on; returns how it has ended if that was told
    already, otherwise that it is open. ``tells``: whether it would be told. ``appended``: all that has changed of the
    tail since the last reading began, or more; None: that is not known.
    """

    watch: Callable[[TxnID], Awaitable[Transaction]]
    tells: bool = False
    appended: tuple[LedgerEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """
    One reading of the segment: its end, the intents that stood then, their headers as far as they mattered, and how
    far may be read by what was open.

    ``followed``: whose header was watched before it was read. ``is_whole``: the intents are all of those that stood,
    and not only the writers of what came since the announced position. ``is_presumed``: a header was not read, because
    its transaction cannot have ended for longer than it takes to be told of that.
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
    Reads the ledger's end, the intents, their headers, and announces how far may be read; abort records are looked up
    after that, when entries are fetched.

    That order is the rule: an intent is put before its entry, so whoever takes the end first finds the intent of every
    entry up to it; and it goes only after its abort record stands, so whoever reads those last finds one or the other.
    So a reading costs what is open now, however much was aborted before.

    Two things shorten the way of an entry to those who wait for it. Entries are read beside the end; if those are all
    that came since the announced position, they tell themselves who wrote them, and nobody else's intent matters: the
    headers of those writers are read, and no intents. (What one that was not read says holds back nothing here, because
    an entry of it comes behind this end.) And looking at headers again, of the same end and the same writers, is a
    reading that took its time before its third step, so a transaction that was in the way costs one look at its end.

    ``announced`` never moves back: a late intent may name a place before it, but has no entries there.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        ledgers: ILedgerStore,
        store: IMetadataStore,
        options: BufferOptions,
        ahead: Ahead,
    ) -> None:
        self.segment = segment
        self.announced: Position | None = None
        self.latest: Reading | None = None
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
        """How many readings have begun."""
        return self._begun

    def begun_after(self, count: int) -> Reading | None:
        """Return the last reading if it began after so many others had begun; None: there is no such one yet."""
        return self.latest if self._finished > count else None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each reading."""
        self._listeners.append(listener)

    async def check_belonging(self) -> None:
        """
        Refuse a ledger that ends before something that the metadata store says of it.

        What the metadata store says is read before the ledger's end, which only grows: so a healthy, busy pair never
        looks like one of which half was restored.
        """
        # Only abort records beyond where the ledger ended before they were read can be beyond where it ends after that:
        # hardly any, unless something is wrong.
        before = _end(await self._ledger.tail())
        bounds = [max(intent.after, Position(intent.ledger_id, -1)) for intent in await self._intents()]
        recorded = await highest_abort_bound(self._store, self.segment, before, self._options.page_records)
        furthest = max([*bounds, *([] if recorded is None else [recorded])], default=EARLIEST)
        end = _end(await self._ledger.tail())
        if furthest > end:
            raise StoreMismatch(
                f"metadata store {self._store.identity} speaks of {furthest} in {self.segment}, but in ledger store"
                f" {self._ledgers.identity} it ends at {end}; one of them was restored from a backup"
            )

    async def refresh(self, following: Following | None = None) -> Reading:
        """
        Return a reading that began after this was called; callers that wait at the same time share one.

        ``following``: somebody waits for the entries, so they are read ahead unless they were told; it is asked to
        watch the header of whoever wrote the first of them, who is in the way if anybody is.
        """
        ticket = self._begun
        async with self._lock:
            if self.latest is None or self._finished_reading <= ticket:
                self._begun += 1
                number = self._begun
                told = None if following is None else self._told_tail(following.appended)
                self.latest = await self._read(following, told)
                self._finished = number
                # What was told is as old as the telling: it does not serve somebody who asks how it stands by now.
                if told is None:
                    self._finished_reading = number
            reading = self.latest
        self._tell()
        return reading

    async def look_again(self, told: Transaction | None = None) -> Reading:
        """
        Return the last reading with the headers as they are now, of those that were open in it.

        ``told``: a transaction that is known to have ended, whose header need not be read to know it.
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

    async def _read(self, following: Following | None, told: Tail | None) -> Reading:
        """Read in the order that is the rule, take in what was found, and announce; ``told``: the end is known."""
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
            return replace(await self._decided(tail, found, headers), followed=followed)
        presumed = None if told is None else await self._presumed(following)
        headers, followed = presumed or await self._headers_ahead(following)
        reading = await self._decided(tail, intents, headers, is_whole=False)
        return replace(reading, followed=followed, is_presumed=presumed is not None and reading.seen.pin is not None)

    def _told_tail(self, appended: tuple[LedgerEntry, ...] | None) -> Tail | None:
        """Return the tail with what was appended since the last reading, and hold that; None: it has to be read."""
        if self.latest is None or self.announced is None or not appended:
            return None
        before = self.latest.tail
        after, came = grown_by(before, appended)
        if after is not None:
            self._ahead.take(self.announced, before.last_confirmed, came)
        return after

    async def _decided(
        self, tail: Tail, intents: list[Intent], headers: dict[TxnID, Transaction | None], *, is_whole: bool = True
    ) -> Reading:
        """Read the headers of intents that are not in ``headers``, as far as they matter, and announce."""
        while wanted := undecided(intents, headers, self.announced, self._options.headers_together_max):
            headers.update(await self._headers(wanted))
        result = seen(tail.last_confirmed, intents, headers)
        # Together with the announcement: whoever sees the one sees the other.
        self.outcomes.observe(result.aborted, result.counted, is_whole=is_whole)
        self.announced = result.max_read if self.announced is None else max(self.announced, result.max_read)
        return Reading(tail, intents, headers, result, is_whole=is_whole)

    async def _presumed(self, following: Following) -> tuple[dict[TxnID, Transaction | None], TxnID] | None:
        """Return how the one transaction stands whose entries were told, as far as is told; None: it has to be read."""
        wanted = {branch.txn_id for branch in self._ahead.branches()}
        if len(wanted) != 1 or not following.tells or not self._options.open_presumed_ms:
            return None
        (txn_id,) = wanted
        return {txn_id: await following.watch(txn_id)}, txn_id

    async def _headers_ahead(self, following: Following) -> tuple[dict[TxnID, Transaction | None], TxnID | None]:
        """Return the headers of those who wrote what was read ahead, as far as they are there, and who is followed."""
        branches = self._ahead.branches()
        wanted = list(dict.fromkeys(branch.txn_id for branch in branches))[: self._options.headers_together_max]
        if not wanted:
            return {}, None
        watching = asyncio.ensure_future(following.watch(wanted[0]))
        await asyncio.sleep(0)
        # Where a watch needs a request of its own, the headers do not wait for it.
        followed = wanted[0] if watching.done() else None
        _, found = await asyncio.gather(watching, self._headers(wanted))
        # One that is not there tells nothing yet: its intent may have gone before it, or may come with it.
        headers = {txn_id: header for txn_id, header in found.items() if header is not None}
        for branch in branches:
            header = headers.get(branch.txn_id)
            if header is not None and not _is_open(header):
                self.outcomes.note([branch], aborted=not header.counts(branch.number))
        return {**headers}, followed

    async def _headers(self, wanted: list[TxnID]) -> dict[TxnID, Transaction | None]:
        """Return the headers of some transactions as they are now."""
        found = await asyncio.gather(*(read_header(self._store, txn_id) for txn_id in wanted))
        return {
            txn_id: None if header is None else header.transaction for txn_id, header in zip(wanted, found, strict=True)
        }

    async def _intents(self) -> list[Intent]:
        """Return the write operations on this segment, by what they stand after."""
        entries = index_keys.prefix_range(WRITES_BY_SEGMENT, self.segment)
        found = []
        for record in await scan_index_all(self._store, entries, self._options.page_records):
            operation = operation_of(record)
            document = operation.document
            if isinstance(document, WriteOperation) and document.segment == self.segment:
                found.append(Intent(operation.branch, document.ledger, Position.parse(document.after)))
        return sorted(found, key=lambda intent: intent.after)


def grown_by(tail: Tail, appended: Sequence[LedgerEntry]) -> tuple[Tail | None, list[LedgerEntry]]:
    """Return a tail with entries that were appended behind it, and those; None: there is something between them."""
    last, came = tail.last_confirmed, []
    for entry in appended:
        if entry.position > last:
            following = last.entry_id + 1 if last.ledger_id == tail.open_ledger_id else 0
            if tail.sealed or entry.position != Position(tail.open_ledger_id, following):
                return None, []
            last = entry.position
            came.append(entry)
    return replace(tail, last_confirmed=last), came


def _is_open(header: Transaction | None) -> bool:
    """Return whether a transaction may still end one way or the other."""
    return header is not None and header.state is State.OPEN


def _end(tail: Tail) -> Position:
    """Return the furthest place that anything may speak of."""
    return max(tail.last_confirmed, Position(tail.open_ledger_id, -1))
