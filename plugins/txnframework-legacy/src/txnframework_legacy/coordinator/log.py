"""The coordinators' logs, as this process has read them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from txnframework.errors import Closed, EntryTrimmed, LedgerNotFound, OutcomeUnknown, Unavailable
from txnframework.interfaces import ILedgerStore, IManagedLedger, IWatch
from txnframework.model import EARLIEST, Position, TxnID
from txnframework_legacy.coordinator.records import AnyRecord, decode, encode
from txnframework_legacy.coordinator.state import LoggedTransaction, Transactions
from txnframework_legacy.log import BatchedLogWriter, LedgerCount, read_records
from txnframework_legacy.log.switched_writer import LogWriterFactory
from txnframework_legacy.log.switches import Scope


class TransactionLog:
    """
    The log of one coordinator: appends records, reads records after the last one read, and trims from the front.

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
        position = await self._writer.add(encode(record))
        try:
            await self._read_to(position.entry)
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"a record was stored in {self._ledger.name}, but could not be read") from error
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
                        decoded = [(decode(record, self._ledger.name), record.position) for record in records]
                        for one, position in decoded:
                            self.transactions.apply(one, position)
                        self._read.add(records)
                        self._upto = decoded[-1][1].entry
                except EntryTrimmed:
                    (first, *_) = await self._ledger.ledgers(-1, 1)
                    self.transactions.trimmed(first.ledger_id)
                    self._upto = max(self._upto, Position(first.ledger_id, -1))
                    continue
                self._upto = max(self._upto, upto)


LOG_PREFIX = "transaction-log:"
NAMES_MAX = 1_000


def log_name(coordinator: int) -> str:
    """Return the name of a coordinator's log; no topic can have such a name."""
    return f"{LOG_PREFIX}{coordinator:04x}"


def coordinator_of(name: str) -> int:
    """Return the coordinator id in the name of a log."""
    return int(name.removeprefix(LOG_PREFIX), 16)


def log_scope(coordinator: int) -> Scope:
    """Return the batching scope of a coordinator's log."""
    return Scope(f"{coordinator:04x}")


class TransactionLogs:
    """Opens each log on first use and keeps it open. A log is created when its first transaction begins."""

    def __init__(self, ledgers: ILedgerStore, writers: LogWriterFactory) -> None:
        self._ledgers = ledgers
        self._writers = writers
        self._opened: dict[int, TransactionLog] = {}
        self._opening = asyncio.Lock()

    async def make(self, coordinator: int) -> TransactionLog:
        """Return a coordinator's log; create it if it does not exist."""
        made = await self._get(coordinator, make=True)
        assert made is not None
        return made

    async def find(self, coordinator: int) -> TransactionLog | None:
        """Return a coordinator's log; None if no transaction ever began in it."""
        return await self._get(coordinator, make=False)

    async def find_logged(self, txn_id: TxnID) -> tuple[TransactionLog, LoggedTransaction] | None:
        """Return a transaction and its log, including all records confirmed before the call; None if it is unknown."""
        log = await self.find(txn_id.coordinator)
        if log is None:
            return None
        logged = (await log.catch_up()).get(txn_id.number)
        return None if logged is None else (log, logged)

    async def all(self) -> list[TransactionLog]:
        """
        Return every log that exists, ordered by coordinator id.

        This includes coordinators that are no longer configured: their open and half-ended transactions still have to
        end.
        """
        found: list[TransactionLog] = []
        after = ""
        while names := await self._ledgers.list_names(LOG_PREFIX, after, NAMES_MAX):
            found += [log for log in [await self.find(coordinator_of(name)) for name in names] if log is not None]
            after = names[-1]
        return found

    async def close(self) -> None:
        """Close all open logs."""
        async with AsyncExitStack() as stack:
            for log in self._opened.values():
                stack.push_async_callback(log.close)

    async def _get(self, coordinator: int, *, make: bool) -> TransactionLog | None:
        if coordinator in self._opened:
            return self._opened[coordinator]
        async with self._opening:
            if coordinator not in self._opened:
                name = log_name(coordinator)
                try:
                    ledger = await (self._ledgers.create(name) if make else self._ledgers.open(name))
                except LedgerNotFound:
                    return None
                writer = await self._writers.open(ledger, log_scope(coordinator))
                self._opened[coordinator] = TransactionLog(coordinator, ledger, writer)
            return self._opened[coordinator]
