"""The server ends connections, including the listening one, and keeps running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import pytest

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a")
T = TypeVar("T")


async def insisted(call: Callable[[], Awaitable[T]]) -> T:
    """Retry until the call is answered: a client notices an ended connection only when it sends something."""
    while True:
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            return await call()


@pytest.mark.parametrize(
    "target", [KEY, KeyRange("/", "0"), IndexRange("kind", b"k", b"l")], ids=["key", "range", "index"]
)
async def test_watches_wake(stores: Stores, target: Key | KeyRange | IndexRange) -> None:
    """Every watch wakes after the loss of the listening connection, and receives later changes over the next one."""
    async with stores.metadata() as store, stores.metadata() as other:
        watch = await store.watch(target)
        for number in range(3):
            waiting = asyncio.create_task(watch.changed())
            await asyncio.sleep(0)
            assert await asyncio.to_thread(stores.disconnect_everybody)
            await waiting
            put = Put(KEY, b"%d" % number, Expect.ANY, (IndexEntry("kind", b"k"),))
            await insisted(lambda put=put: other.put(put))
            while (record := await store.get(KEY)) is None or record.value != put.value:
                await watch.changed()


async def test_leases_are_kept(stores: Stores) -> None:
    """A lease belongs to its session, so it survives the loss of every connection."""
    async with stores.metadata() as store, stores.metadata() as other:
        lease = await store.acquire_lease("name", "one")
        assert await asyncio.to_thread(stores.disconnect_everybody)
        again = await insisted(lambda: store.acquire_lease("name", "one"))
        assert again.key == lease.key
        await lease.release()
        assert (await insisted(lambda: other.acquire_lease("name", "other"))).fencing > lease.fencing
