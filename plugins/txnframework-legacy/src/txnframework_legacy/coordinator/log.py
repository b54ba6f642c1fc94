"""One coordinator's log, as this process knows it."""

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
    The log of one coordinator: appended to, read from where this process came to, and trimmed from the front.

    Others append to it and trim it at the same time.
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
        """Return the transactions with every record that was confirmed before this was called."""
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        return self.transactions

    async def append(self, record: AnyRecord) -> Transactions:
        """
        Append a record and return the transactions as they are then: whether it took effect is seen there.

        :raises OutcomeUnknown: it may stand there, or come to.
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
        Trim the ledgers in front whose transactions are all forgotten; return whether any was.

        The open ledger is closed when it has ``records_max`` records, or when nothing in it is needed: a log without
        transactions shrinks to nothing.
        """
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        records = self._read.of(tail.open_ledger_id)
        if records and (records >= records_max or self.transactions.live.first_ledger() is None):
            tail = await self._ledger.roll()
        # Somebody may have begun a transaction before the ledger was closed. Nobody can any more: so what stands in the
        # closed ones is read to its end before it is decided which of them go.
        await self._read_to(Position(tail.open_ledger_id, -1))
        first_live = self.transactions.live.first_ledger()
        below = tail.open_ledger_id if first_live is None else min(first_live, tail.open_ledger_id)
        (first, *_) = await self._ledger.ledgers(-1, 1)
        if first.ledger_id >= below:
            return False
        await self._ledger.trim(below, frozenset())
        return True

    async def close(self) -> None:
        """Take nothing more, and let the ledger go; may be repeated."""
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
