"""A single put or delete has its own statements, with the same effect as in a group."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING

import pytest
from test_index_entries import require_in_step

from txnframework.errors import VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Expect, Expected, IndexEntry, IndexRange, Key, Put

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a/ä", "p")
Entries = tuple[IndexEntry, ...]
ENTRIES: tuple[Entries, ...] = (
    (),
    (IndexEntry("by", b"1"),),
    (IndexEntry("by", b"2"),),
    (IndexEntry("by", b"1"), IndexEntry("of", b"\0\xff")),
)


async def outcome(store: IMetadataStore, put: Put, *, is_alone: bool) -> bool:
    """Put a record, alone or in one statement with another one; return whether its expectation was met."""
    others = () if is_alone else (store.put(Put(Key("/other"), b"", Expect.ANY)),)
    found, *_ = await asyncio.gather(store.put(put), *others, return_exceptions=True)
    record = await store.get(put.key)
    if isinstance(found, VersionMismatch):
        assert found.actual == (None if record is None else record.version)
        return False
    assert record is not None
    assert (found, put.value) == (record.version, record.value)
    return True


@pytest.mark.parametrize("is_alone", [True, False])
async def test_every_put(stores: Stores, is_alone: bool) -> None:
    """For every earlier and later state, the record is written or refused as expected, with matching index entries."""
    async with stores.metadata() as store:
        for number, (before, after) in enumerate(product((None, *ENTRIES), ENTRIES)):
            for expected in ("there", "gone", Expect.ABSENT, Expect.ANY):
                key = Key(f"/{number}/{expected}", "p" * (number % 2))
                version = 0 if before is None else await store.put(Put(key, b"before", Expect.ABSENT, before))
                wanted = {"there": version, "gone": version + 10**9}.get(str(expected), expected)
                put = Put(key, b"after", wanted, after)
                is_met = {"there": bool(version), "gone": False}.get(
                    str(expected), expected is Expect.ANY or not version
                )
                assert await outcome(store, put, is_alone=is_alone) == is_met
        await require_in_step(stores)


@pytest.mark.parametrize("padding", [0, 1_000])
async def test_watches_of_others(stores: Stores, padding: int) -> None:
    """Other clients' watches on the record, and on its earlier and later index entries, are woken."""
    key = Key("/a/" + "ä" * padding, "p")

    async with stores.metadata() as store, stores.metadata() as other:
        version = await store.put(Put(key, b"", Expect.ABSENT, ENTRIES[1]))
        targets = (key, IndexRange("by", b"1", b"2"), IndexRange("by", b"2", b"3"))
        watches = [await other.watch(target) for target in targets]
        await store.put(Put(key, b"", version, ENTRIES[2]))
        for watch in watches:
            await watch.changed()


async def test_one_writer_at_a_time(stores: Stores) -> None:
    """Of several clients that name one version, one writes: no increment is counted twice."""
    clients, times = 4, 25

    async def count(store: IMetadataStore) -> None:
        done = 0
        while done < times:
            record = await store.get(KEY)
            number = 0 if record is None else int(record.value)
            expected = Expect.ABSENT if record is None else record.version
            entry = IndexEntry("by", b"%06d" % (number + 1))
            try:
                await store.put(Put(KEY, b"%d" % (number + 1), expected, (entry,)))
            except VersionMismatch:
                continue
            done += 1

    async with stores.metadata() as a, stores.metadata() as b, stores.metadata() as c, stores.metadata() as d:
        await asyncio.gather(*(count(store) for store in (a, b, c, d)))
        record = await a.get(KEY)
        assert record is not None
        assert int(record.value) == clients * times
        assert await require_in_step(stores) == 1


@pytest.mark.parametrize("is_alone", [True, False])
async def test_every_delete(stores: Stores, is_alone: bool) -> None:
    """A record is deleted or not as expected, with its index entries, and watches of them are woken."""

    async def delete(store: IMetadataStore, key: Key, expected: Expected) -> int | None:
        """Return the version that refused the delete; -1: it was not refused."""
        others = () if is_alone else (store.put(Put(Key("/other"), b"", Expect.ANY)),)
        found, *_ = await asyncio.gather(store.delete(key, expected), *others, return_exceptions=True)
        if isinstance(found, VersionMismatch):
            return found.actual
        assert found is None
        return -1

    async with stores.metadata() as store, stores.metadata() as other:
        for number, entries in enumerate(ENTRIES):
            key = Key(f"/{number}", "p" * (number % 2))
            version = await store.put(Put(key, b"", Expect.ABSENT, entries))
            targets = (key, *(IndexRange(one.index, one.key, one.key + b"\0") for one in entries))
            watches = [await other.watch(target) for target in targets]
            assert await delete(store, key, version + 10**9) == version
            assert await delete(store, key, version) == -1
            assert await store.get(key) is None
            for watch in watches:
                await watch.changed()
            assert await delete(store, key, version) is None
            assert await delete(store, key, Expect.ANY) == -1
        await require_in_step(stores)
