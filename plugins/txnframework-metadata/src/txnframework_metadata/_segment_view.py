"""What this process knows of what may be read of one segment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from txnframework.errors import StoreMismatch
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import WRITES_BY_SEGMENT
from txnframework.model.ledger import Tail
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import WriteOperation
from txnframework.model.transactions import Transaction
from txnframework_metadata._aborted import KnownOutcomes
from txnframework_metadata._operations import read_header, scan_index_all
from txnframework_metadata._options import BufferOptions
from txnframework_metadata._outcomes import highest_abort_bound
from txnframework_metadata._views import operation_of
from txnframework_metadata._visibility import Intent, Seen, seen, undecided


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the segment: its end, and how far may be read by what was open then."""

    tail: Tail
    seen: Seen


class SegmentView:
    """
    Reads the ledger's end, the intents, their headers, and announces how far may be read; abort records are looked up
    after that, when entries are fetched.

    That order is the rule: an intent is put before its entry, so whoever takes the end first finds the intent of every
    entry up to it; and it goes only after its abort record stands, so whoever reads those last finds one or the other.
    So a reading costs what is open now, however much was aborted before.

    ``announced`` never moves back: a late intent may name a place before it, but has no entries there.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        ledgers: ILedgerStore,
        store: IMetadataStore,
        options: BufferOptions,
    ) -> None:
        self.segment = segment
        self.announced: Position | None = None
        self.latest: Reading | None = None
        self.outcomes = KnownOutcomes(options.outcomes_max)
        self._ledger = ledger
        self._ledgers = ledgers
        self._store = store
        self._options = options
        self._lock = asyncio.Lock()
        self._begun = 0
        self._finished = 0
        self._listeners: list[Callable[[], None]] = []

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

    async def refresh(self) -> Reading:
        """Return a reading that began after this was called; callers that wait at the same time share one."""
        ticket = self._begun
        async with self._lock:
            if self.latest is None or self._finished <= ticket:
                self._begun += 1
                number = self._begun
                self.latest = await self._read()
                self._finished = number
            reading = self.latest
        for listener in self._listeners:
            listener()
        return reading

    async def _read(self) -> Reading:
        """Read in the order that is the rule, take in what was found, and announce."""
        tail = await self._ledger.tail()
        intents = await self._intents()
        headers: dict[TxnID, Transaction | None] = {}
        while wanted := undecided(intents, headers, self.announced, self._options.headers_together_max):
            found = await asyncio.gather(*(read_header(self._store, txn_id) for txn_id in wanted))
            for txn_id, header in zip(wanted, found, strict=True):
                headers[txn_id] = None if header is None else header.transaction
        result = seen(tail.last_confirmed, intents, headers)
        # Together with the announcement: whoever sees the one sees the other.
        self.outcomes.observe(result.aborted, result.counted)
        self.announced = result.max_read if self.announced is None else max(self.announced, result.max_read)
        return Reading(tail, result)

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


def _end(tail: Tail) -> Position:
    """Return the furthest place that anything may speak of."""
    return max(tail.last_confirmed, Position(tail.open_ledger_id, -1))
