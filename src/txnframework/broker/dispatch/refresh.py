"""Triggers for refreshing a dispatch: changes by other processes, and ended transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from txnframework.broker.coordinators.own_transactions import EndListener
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.dispatch.deliveries import Deliveries
from txnframework.environment import Environment
from txnframework.interfaces import IMetadataStore, ITransactionCoordinator, IValueWatch, IWatch
from txnframework.model.ids import TxnID
from txnframework.model.index_keys import prefix_range
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.runtime.tasks import first_completed

INTERVAL_MS = 100
"""The shortest time between two refreshes caused by store changes, of which some are this process's own."""


class RefreshTrigger:
    """
    Calls ``refresh`` when a transaction that holds messages ended, and when the subscription's records changed.

    Ends of transactions cause a refresh at once. A transaction that this process began reports its end through
    ``on_end`` of ``OwnTransactions``. It is also watched in the store, because another process may end it too, but only
    if it lasts.

    Changes of the records may come from this process itself, so their refreshes are spaced out. They are skipped if
    only this process's own acknowledgments changed the cursor. Correctness does not depend on them, because every
    redelivery is preceded by a refresh.
    """

    def __init__(
        self,
        store: IMetadataStore,
        coordinator: ITransactionCoordinator | None,
        environment: Environment,
        deliveries: Deliveries,
        refresh: Callable[[], Awaitable[None]],
        on_end: Callable[[TxnID, EndListener], bool],
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._deliveries = deliveries
        self._refresh = refresh
        self._on_end = on_end
        # Open transactions that report their ends.
        self._reporting: set[TxnID] = set()
        self._own_ended = asyncio.Event()
        self._watches: list[IWatch] = []
        self._cursor: StoredCursor | None = None
        self._requested = asyncio.Event()

    async def arm(self, segment: str, subscription: str, cursor: StoredCursor) -> None:
        """Watch the subscription's acknowledgments and its cursor; call this before the first refresh."""
        acks = prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, segment, subscription)
        self._watches.append(await self._store.watch(acks))
        self._watches.append(await self._store.watch(cursor.key))
        self._cursor = cursor

    def request(self) -> None:
        """Request a refresh soon."""
        self._requested.set()

    async def run_on_changes(self) -> None:
        """Refresh after changes of the records, in an endless loop."""
        while True:
            came = await first_completed(self._requested.wait(), *(watch.changed() for watch in self._watches))
            # The cursor's watch is the last one, so no other watch has reported a change.
            if came < len(self._watches) or not await self._is_own_change():
                self._requested.clear()
                if self._cursor is not None:
                    self._cursor.own_writes.begin_read()
                await self._refresh()
            await self._pause()

    async def _is_own_change(self) -> bool:
        """Return whether only this process has changed the cursor since the last refresh."""
        if self._cursor is None:
            return False
        watch, own = self._watches[-1], self._cursor.own_writes
        value = watch.value if IValueWatch.providedBy(watch) else None
        if value is not None and not own.are_all(value):
            return False
        # The watch may have reported one of several changes; the later ones may be another process's.
        record = await self._store.get(self._cursor.key)
        return own.are_all(None if record is None else record.value)

    def expect_end(self, txn_id: TxnID) -> None:
        """Let a transaction report its end, if it can; to be called before it holds messages."""
        if txn_id not in self._reporting and self._on_end(txn_id, self._note_end):
            self._reporting.add(txn_id)

    def _note_end(self, txn_id: TxnID) -> None:
        self._reporting.discard(txn_id)
        # Messages of a transaction that was settled as it ended are finished already.
        if txn_id in self._deliveries.holders():
            self._own_ended.set()

    async def run_on_reported_ends(self) -> None:
        """
        Refresh when a transaction has reported its end and still holds messages, in an endless loop.

        If a refresh fails, ``run_on_transaction_ends`` soon causes another one.
        """
        while True:
            await self._own_ended.wait()
            self._own_ended.clear()
            await self._refresh()

    async def run_on_transaction_ends(self) -> None:
        """
        Watch the transactions that hold messages, and refresh as soon as one has ended, in an endless loop.

        Those that report their ends are watched after ``INTERVAL_MS`` only. Return if without coordinator.
        """
        while self._coordinator is not None:
            self._deliveries.holders_changed.clear()
            holders = self._deliveries.holders()
            if not holders:
                await self._deliveries.holders_changed.wait()
                continue
            if holders <= self._reporting:
                await self._pause()
                holders &= self._deliveries.holders()
                if not holders:
                    continue
            came = await first_completed(self._coordinator.watch_ended(holders), self._until_holders_change(holders))
            if came == 0 and not holders.isdisjoint(self._deliveries.holders()):
                await self._refresh()

    async def _until_holders_change(self, holders: frozenset[TxnID]) -> None:
        """
        Wait until the holders have changed.

        A new watch on the same holders after every message would cost reads. So would one after every short transaction
        of this process.
        """
        while self._deliveries.holders() == holders:
            self._deliveries.holders_changed.clear()
            await self._deliveries.holders_changed.wait()
        if self._deliveries.holders() - holders <= self._reporting:
            await self._pause()

    async def _pause(self) -> None:
        await self._environment.sleep_until(self._environment.now_ms() + INTERVAL_MS)

    async def close(self) -> None:
        """Close the watches."""
        async with AsyncExitStack() as stack:
            for watch in self._watches:
                stack.push_async_callback(watch.close)
        self._watches.clear()
