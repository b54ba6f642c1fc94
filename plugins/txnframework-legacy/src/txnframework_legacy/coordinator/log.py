"""One coordinator's log, as this process has read it."""

from __future__ import annotations

import asyncio

from txnframework.errors import Closed, EntryTrimmed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger, IWatch
from txnframework.model import EARLIEST, Position
from txnframework_legacy.coordinator.records import AnyRecord, decode, encode
from txnframework_legacy.coordinator.states import Transactions
from txnframework_legacy.log import BatchedLogWriter, LedgerCount, read_records


class TransactionLog:
    """
    The log of one coordinator: appends records, reads on from the last record read, and trims from the front.

    Other processes append to it and trim it concurrently.
    """

    def __init__(self, coordinator: int, ledger: IManagedLedger, writer: BatchedLogWriter) -> None:
        self.coordinator = coordinator
        self.transactions = Transactions(coordinator)
        self._ledger = ledger
        self._writer = writer
        self._upto = EARLIEST
        self._read = LedgerCount()
        self._reading = asyncio.Lock()

    async def catch_up(self) -> Transactions:
        """Return the transactions after every record that was confirmed before this call."""
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        return self.transactions

    async def append(self, record: AnyRecord) -> Transactions:
        """
        Append a record and return the transactions after it; they show whether the record took effect.

        :raises OutcomeUnknown: the record may be stored, now or later.
        """
        place = await self._writer.add(encode(record))
        try:
            await self._read_to(place.entry)
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"a record stands in {self._ledger.name} that could not be read again") from error
        return self.transactions

    async def watch(self) -> IWatch:
        """Return an armed watch on the log."""
        return await self._ledger.watch()

    async def shrink(self, records_max: int) -> bool:
        """
        Trim the leading ledgers whose transactions are all forgotten; return whether any ledger was trimmed.

        The open ledger is closed when it has ``records_max`` records, or when none of its records is needed. A log
        without transactions therefore shrinks to nothing.
        """
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        records = self._read.of(tail.open_ledger_id)
        if records and (records >= records_max or self.transactions.live.first_ledger() is None):
            tail = await self._ledger.roll()
        # Another process may have begun a transaction before the ledger was closed, but not after. So the closed
        # ledgers are read to their end before the ledgers to trim are chosen.
        await self._read_to(Position(tail.open_ledger_id, -1))
        first_live = self.transactions.live.first_ledger()
        below = tail.open_ledger_id if first_live is None else min(first_live, tail.open_ledger_id)
        (first, *_) = await self._ledger.ledgers(-1, 1)
        if first.ledger_id >= below:
            return False
        await self._ledger.trim(below, frozenset())
        return True

    async def close(self) -> None:
        """Refuse further records and close the ledger. Idempotent."""
        await self._writer.close()
        await self._ledger.close()

    async def _read_to(self, upto: Position) -> None:
        async with self._reading:
            while self._upto < upto:
                try:
                    async for records in read_records(self._ledger, self._upto, upto):
                        decoded = [(decode(record, self._ledger.name), record.place) for record in records]
                        for one, place in decoded:
                            self.transactions.apply(one, place)
                        self._read.add(records)
                        self._upto = decoded[-1][1].entry
                except EntryTrimmed:
                    (first, *_) = await self._ledger.ledgers(-1, 1)
                    self.transactions.trimmed(first.ledger_id)
                    self._upto = max(self._upto, Position(first.ledger_id, -1))
                    continue
                self._upto = max(self._upto, upto)
