"""The logs of the family's coordinators."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from txnframework.errors import LedgerNotFound
from txnframework.interfaces import ILedgerStore
from txnframework.model import TxnID
from txnframework_legacy.batching.switches import Scope
from txnframework_legacy.batching.writers import LogWriters
from txnframework_legacy.coordinator.log import TransactionLog
from txnframework_legacy.coordinator.states import Logged

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

    def __init__(self, ledgers: ILedgerStore, writers: LogWriters) -> None:
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

    async def find_logged(self, txn_id: TxnID) -> tuple[TransactionLog, Logged] | None:
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
