"""Index entries in step with their records, however the writers meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from txnframework.errors import VersionMismatch
from txnframework.interfaces import IAtomicBatchStore, IMetadataStore
from txnframework.model import Batch, Check, Delete, Expect, IndexEntry, Key, Put

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a", "p")
OTHER = Key("/b", "p")
ROUNDS = 15
_KEPT = "SELECT path, partition, indexes FROM records"
_STANDING = "SELECT index_name, key, path, partition FROM index_entries"


async def require_in_step(stores: Stores) -> int:
    """Hold the index entries in the tables to those that the records name of themselves; return how many."""
    raw = await asyncpg.connect(stores.url)
    try:
        async with raw.transaction(isolation="repeatable_read", readonly=True):
            kept = [
                (name, bytes.fromhex(key), path, partition)
                for path, partition, indexes in await raw.fetch(_KEPT)
                for name, key in json.loads(indexes or "[]")
            ]
            standing = [tuple(found) for found in await raw.fetch(_STANDING)]
    finally:
        await raw.close()
    assert sorted(standing) == sorted(kept)
    return len(standing)


def entry(key: str) -> tuple[IndexEntry, ...]:
    """Return an index entry of its own and one that all have."""
    return (IndexEntry("own", key.encode()), IndexEntry("shared", b"s"))


def steps(store: IMetadataStore, name: str) -> list[Awaitable[Any]]:
    """Return what can be done with a record whatever it is, in every way in which it is sent."""
    assert IAtomicBatchStore.providedBy(store)
    any_ = Check(OTHER, Expect.ANY)
    return [
        store.put(Put(KEY, b"", Expect.ANY, entry(f"{name} put"))),
        store.apply(Batch((any_,), (Put(KEY, b"", Expect.ANY, entry(f"{name} batch")),))),
        store.put(Put(KEY, b"", Expect.ABSENT, entry(f"{name} first"))),
        store.apply(Batch((), (Put(KEY, b"", Expect.ANY), Put(OTHER, b"", Expect.ANY, entry(f"{name} other"))))),
    ]


@pytest.mark.parametrize("removing", [False, True])
def test_racing(stores: Stores, removing: bool) -> None:
    """Whoever is last, alone or in a batch, from one client or another, leaves its index entries and nobody else's."""

    async def test() -> None:
        async with stores.metadata() as one, stores.metadata() as other:
            for round_ in range(ROUNDS):
                racing = [step for store in (one, other) for step in steps(store, f"{round_} {store is one}")]
                if removing:
                    racing += [store.delete(KEY, Expect.ANY) for store in (other, one)]
                outcomes = await asyncio.gather(*racing, return_exceptions=True)
                failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert all(isinstance(error, VersionMismatch) for error in failed)
                assert len(failed) <= 2
                await require_in_step(stores)

    stores.run(test)


def test_replaced_and_removed(stores: Stores) -> None:
    """What a record gets, keeps and loses among index entries stands in the table, by itself and in a batch."""

    async def test() -> None:
        async with stores.metadata() as store:
            assert IAtomicBatchStore.providedBy(store)
            for put in (store.put, lambda put: store.apply(Batch((), (put,)))):
                for indexes, count in ((entry("1"), 2), (entry("2"), 2), (entry("2")[:1], 1), ((), 0), (entry("3"), 2)):
                    await put(Put(KEY, b"", Expect.ANY, indexes))
                    assert await require_in_step(stores) == count
                await store.delete(KEY, Expect.ANY)
                assert await require_in_step(stores) == 0
            await store.put(Put(KEY, b"", Expect.ANY, entry("4")))
            await store.apply(Batch((Check(OTHER, Expect.ABSENT),), (), (Delete(KEY, Expect.ANY),)))
            assert await require_in_step(stores) == 0

    stores.run(test)
