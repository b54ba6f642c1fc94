"""What wakes a dispatch: changes of the cursor by others, and ends of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from zope.interface import implementer

from txnframework.broker.coordinators.own_transactions import EndListener
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage, MessageState
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.dispatch.refresh import INTERVAL_MS, RefreshTrigger
from txnframework.interfaces import IValueWatch
from txnframework.model.cursor import Cursor
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Key, Record
from txnframework.model.positions import Position
from txnframework.model.transactions import State
from txnframework.testing.clock import VirtualEnvironment, run_ready

OWN, OTHERS = b"own", b"others"


@implementer(IValueWatch)
class Watch:
    """A watch that announces one value."""

    def __init__(self, told: bytes | None = None) -> None:
        self.value = told
        self._fires = asyncio.Event()

    def fire(self) -> None:
        self._fires.set()

    async def changed(self) -> None:
        await self._fires.wait()
        self._fires.clear()

    async def close(self) -> None:
        return None


class Store:
    """Holds one cursor, and returns its given watches."""

    def __init__(self, state: bytes, *watches: Watch) -> None:
        self._standing = state
        self._watches = list(watches)

    async def watch(self, _: object) -> Watch:
        return self._watches.pop(0)

    async def get(self, key: Key) -> Record:
        return Record(key, self._standing, 1)


@pytest.mark.parametrize(
    ("told", "state", "looks"),
    [(OWN, OWN, 0), (OTHERS, OTHERS, 1), (OTHERS, OWN, 1), (None, OWN, 0), (None, OTHERS, 1), (OWN, OTHERS, 1)],
)
def test_only_what_this_process_wrote_alone_needs_no_look(told: bytes | None, state: bytes, looks: int) -> None:
    """If an own and a foreign change arrive as one, the announced one may be the own: a refresh happens all the
    same.
    """
    looked: list[None] = []

    async def look() -> None:
        looked.append(None)

    async def run() -> None:
        watch = Watch(told)
        store: Any = Store(state, Watch(), watch)
        cursor = StoredCursor(store, "topic", "segment", "subscription")
        cursor.own_writes.replacing(b"before", OWN)
        cursor.own_writes.begin_read()
        trigger = RefreshTrigger(store, None, VirtualEnvironment(1), Deliveries(), look, lambda *_: False)
        await trigger.arm("segment", "subscription", cursor)
        task = asyncio.ensure_future(trigger.run_on_changes())
        watch.fire()
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await trigger.close()

    asyncio.run(run())
    assert len(looked) == looks


FIRST, SECOND = Branch(TxnID(0, 1)), Branch(TxnID(0, 2))


class Coordinator:
    """Records which transactions are watched; ``end`` ends one, as another process does."""

    def __init__(self) -> None:
        self.watched: list[frozenset[TxnID]] = []
        self._ended: dict[TxnID, asyncio.Event] = {}

    def end(self, branch: Branch) -> None:
        self._event(branch.txn_id).set()

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        self.watched.append(txn_ids)
        events = [asyncio.ensure_future(self._event(one).wait()) for one in txn_ids]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in events:
                event.cancel()
        return {one: State.ABORTED for one in txn_ids if self._event(one).is_set()}

    def _event(self, txn_id: TxnID) -> asyncio.Event:
        return self._ended.setdefault(txn_id, asyncio.Event())


class Trigger:
    """A trigger whose refresh frees the messages of ended transactions."""

    def __init__(self, *begun_here: Branch) -> None:
        self.clock = VirtualEnvironment(1)
        self.coordinator = Coordinator()
        self.deliveries = Deliveries()
        self.refreshes = 0
        self.own: dict[TxnID, EndListener | None] = {one.txn_id: None for one in begun_here}
        coordinator: Any = self.coordinator
        store: Any = None
        self.trigger = RefreshTrigger(store, coordinator, self.clock, self.deliveries, self._refresh, self._on_end)

    def acknowledge(self, branch: Branch, entry_id: int) -> HeldMessage:
        """Let a transaction hold a message."""
        at = Position(1, entry_id, 0)
        held = HeldMessage(at, 1, EntryMessage(None, b"", (), 0, 0), "p", None)
        self.deliveries.read(held, Cursor(1, Position(0, -1)), OpenAcks({}, 1))
        self.trigger.expect_end(branch.txn_id)
        self.deliveries.set_state(held, MessageState.PENDING_ACK, branch)
        return held

    def end_here(self, branch: Branch) -> None:
        """End a transaction through this process."""
        listener = self.own.pop(branch.txn_id)
        assert listener is not None
        listener(branch.txn_id)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the trigger beside ``work``."""

        async def both() -> None:
            running = [self.trigger.run_on_reported_ends(), self.trigger.run_on_transaction_ends()]
            tasks = [asyncio.ensure_future(one) for one in running]
            await work()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(both())

    def _on_end(self, txn_id: TxnID, listener: EndListener) -> bool:
        if txn_id not in self.own:
            return False
        self.own[txn_id] = listener
        return True

    async def _refresh(self) -> None:
        self.refreshes += 1


def test_a_short_transaction_of_this_process_is_not_watched() -> None:
    """Its messages are finished when it ends, so no refresh is needed, either."""
    one = Trigger(FIRST, SECOND)

    async def work() -> None:
        for number, branch in enumerate((FIRST, SECOND)):
            held = one.acknowledge(branch, number)
            await run_ready()
            one.deliveries.forget((held,))
            one.end_here(branch)
            await run_ready()
        await one.clock.advance(10 * INTERVAL_MS)
        assert (one.coordinator.watched, one.refreshes) == ([], 0)

    one.run(work)


def test_an_end_through_this_process_is_noticed_at_once() -> None:
    """Messages of an aborted transaction are refreshed without waiting, and without a watch."""
    one = Trigger(FIRST)

    async def work() -> None:
        one.acknowledge(FIRST, 0)
        await run_ready()
        one.end_here(FIRST)
        await run_ready()
        assert (one.coordinator.watched, one.refreshes) == ([], 1)

    one.run(work)


def test_a_transaction_that_lasts_is_watched() -> None:
    """Another process may end a long transaction, also while short ones of this process come and go."""
    short = [Branch(TxnID(0, number)) for number in range(10, 30)]
    one = Trigger(FIRST, *short)

    async def work() -> None:
        one.acknowledge(FIRST, 0)
        await one.clock.advance(INTERVAL_MS)
        assert one.coordinator.watched == [{FIRST.txn_id}]
        for number, branch in enumerate(short, 1):
            held = one.acknowledge(branch, number)
            await one.clock.advance(INTERVAL_MS // 5)
            one.deliveries.forget((held,))
            one.end_here(branch)
            await one.clock.advance(INTERVAL_MS // 5)
        assert one.refreshes == 0
        assert 1 < len(one.coordinator.watched) <= 1 + len(short) // 2
        one.coordinator.end(FIRST)
        await one.clock.advance(INTERVAL_MS)
        assert one.refreshes

    one.run(work)


def test_a_transaction_of_another_process_is_watched_at_once() -> None:
    """Its end is not reported here, even if transactions of this process hold messages too."""
    one = Trigger(FIRST)

    async def work() -> None:
        one.acknowledge(FIRST, 0)
        one.acknowledge(SECOND, 1)
        await run_ready()
        assert one.coordinator.watched == [{FIRST.txn_id, SECOND.txn_id}]
        one.coordinator.end(SECOND)
        await run_ready()
        assert one.refreshes

    one.run(work)
