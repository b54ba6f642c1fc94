"""The server ends connections, also the one that listens, while it goes on itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a")


@pytest.mark.parametrize(
    "target", [KEY, KeyRange("/", "0"), IndexRange("kind", b"k", b"l")], ids=["key", "range", "index"]
)
def test_watches_wake(stores: Stores, target: Key | KeyRange | IndexRange) -> None:
    """Every watch wakes when the connection that listens is gone, and hears later changes over the next one."""

    async def test() -> None:
        async with stores.metadata() as store, stores.metadata() as other:
            watch = await store.watch(target)
            for number in range(3):
                waiting = asyncio.create_task(watch.changed())
                await asyncio.sleep(0)
                assert await asyncio.to_thread(stores.disconnect_everybody)
                await waiting
                put = Put(KEY, b"%d" % number, Expect.ANY, (IndexEntry("kind", b"k"),))
                try:
                    await other.put(put)
                except (Unavailable, OutcomeUnknown):
                    # Its connection was ended as well: before anything was sent over it, or while it was.
                    await other.put(put)
                while (record := await store.get(KEY)) is None or record.value != put.value:
                    await watch.changed()

    stores.run(test)


def test_leases_are_kept(stores: Stores) -> None:
    """A lease is its session's, not its connection's: it outlives the loss of every connection."""

    async def test() -> None:
        async with stores.metadata() as store, stores.metadata() as other:
            lease = await store.acquire_lease("name", "one")
            assert await asyncio.to_thread(stores.disconnect_everybody)
            again = None
            while again is None:
                try:
                    again = await store.acquire_lease("name", "one")
                except Unavailable:
                    continue
            assert again.key == lease.key
            await lease.release()
            assert (await other.acquire_lease("name", "other")).fencing > lease.fencing

    stores.run(test)
