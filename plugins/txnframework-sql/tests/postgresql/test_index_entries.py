"""Index entries match their records, whatever the order of concurrent writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from txnframework.errors import VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Check, Delete, Expect, IndexEntry, Key, Put, Step

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a", "p")
OTHER = Key("/b", "p")
ROUNDS = 15
_KEPT = "SELECT path, partition, indexes FROM records"
_STANDING = "SELECT index_name, key, path, partition FROM index_entries"


async def require_in_step(stores: Stores) -> int:
    """Assert that the index entries in the tables are those that the records list; return their number."""
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
    """Return an index entry of its own, and one that all records share."""
    return (IndexEntry("own", key.encode()), IndexEntry("shared", b"s"))


def steps(store: IMetadataStore, name: str) -> list[Awaitable[Any]]:
    """Return every kind of write that is possible for any state of a record."""
    any_ = Check(OTHER, Expect.ANY)
    return [
        store.put(Put(KEY, b"", Expect.ANY, entry(f"{name} put"))),
        store.apply(Step((any_,), (Put(KEY, b"", Expect.ANY, entry(f"{name} batch")),))),
        store.put(Put(KEY, b"", Expect.ABSENT, entry(f"{name} first"))),
        store.apply(Step((), (Put(KEY, b"", Expect.ANY), Put(OTHER, b"", Expect.ANY, entry(f"{name} other"))))),
    ]


@pytest.mark.parametrize("removing", [False, True])
async def test_racing(stores: Stores, removing: bool) -> None:
    """The last writer's index entries remain, and no others, for single writes and batches of several clients."""
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


async def test_replaced_and_removed(stores: Stores) -> None:
    """
    The tables have the index entries that a record gets and keeps, and not those it loses, for single writes and
    batches.
    """
    async with stores.metadata() as store:
        for put in (store.put, lambda put: store.apply(Step((), (put,)))):
            for indexes, count in ((entry("1"), 2), (entry("2"), 2), (entry("2")[:1], 1), ((), 0), (entry("3"), 2)):
                await put(Put(KEY, b"", Expect.ANY, indexes))
                assert await require_in_step(stores) == count
            await store.delete(KEY, Expect.ANY)
            assert await require_in_step(stores) == 0
        await store.put(Put(KEY, b"", Expect.ANY, entry("4")))
        await store.apply(Step((Check(OTHER, Expect.ABSENT),), (), (Delete(KEY, Expect.ANY),)))
        assert await require_in_step(stores) == 0
