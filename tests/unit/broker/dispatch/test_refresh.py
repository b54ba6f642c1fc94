"""What wakes a dispatch: others' changes of the cursor, whichever of several changes a watch tells."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from zope.interface import implementer

from txnframework.broker.cursors import StoredCursor
from txnframework.broker.dispatch.deliveries import Deliveries
from txnframework.broker.dispatch.refresh import RefreshTrigger
from txnframework.interfaces import IValueWatch
from txnframework.model.metadata import Key, Record
from txnframework.testing.clock import VirtualEnvironment

OWN, OTHERS = b"own", b"others"


@implementer(IValueWatch)
class Watch:
    """Tells a value once."""

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
    """Holds one cursor, and gives out the watches that it was made with."""

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
    """Of an own change and another one that come as one, the own one may be told: it looks all the same."""
    looked: list[None] = []

    async def look() -> None:
        looked.append(None)

    async def run() -> None:
        watch = Watch(told)
        store: Any = Store(state, Watch(), watch)
        cursor = StoredCursor(store, "topic", "segment", "subscription")
        cursor.own_writes.replacing(b"before", OWN)
        cursor.own_writes.begin_read()
        trigger = RefreshTrigger(store, None, VirtualEnvironment(1), Deliveries(), look)
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
