"""Rules of scans by key, scans by index, and sequences."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put, PutSequential
from txnframework.model.index_keys import encode, prefix_range
from txnframework.testing._suites._metadata._case import (
    BY_KIND,
    EVERY_KIND,
    MetadataStoreRules,
    create,
    entries,
    paths,
    put_next,
    scan_all,
    scan_kinds,
)

AWKWARD_COMPONENTS = (
    "",
    "a",
    "ab",
    "a/b",
    "a:b",
    "a%",
    "a~",
    "a b",
    "A",
    "sub",
    "sub-2",
    "ä",
    "\u6f22",
    "a\x00",
    "\x00",
    "\x01",
)


class ScanRules(MetadataStoreRules):
    """Scans return records in the order of their keys."""

    async def test_order_is_that_of_utf8(self) -> None:
        """
        A scan returns records in the byte order of their UTF-8 keys, whatever the order of writing.

        If this fails, check the collation: language collations and UTF-16 order sort differently.
        """
        names = ["/z", "/a", "/B", "/a/1", "/a-1", "/a0", "/ä", "/\uffee", "/\U00010000", "/10", "/9"]
        async with self.data.open() as store:
            for path in names:
                await create(store, path)
            assert paths(await scan_all(store)) == sorted(names, key=str.encode)

    async def test_edges(self) -> None:
        """A range includes its start and excludes its stop; a range whose stop is not above its start is empty."""
        async with self.data.open() as store:
            for path in ("/a", "/b", "/b/1", "/c"):
                await create(store, path)
            assert paths(await scan_all(store, KeyRange("/b", "/c"))) == ["/b", "/b/1"]
            assert paths(await scan_all(store, KeyRange("/b/", "/b0"))) == ["/b/1"]
            assert await scan_all(store, KeyRange("/b", "/b")) == []
            assert await scan_all(store, KeyRange("/c", "/a")) == []
            assert await scan_all(store, KeyRange("/d", "/e")) == []

    @pytest.mark.parametrize("items_max", [1, 2, 3, 7, 8])
    async def test_pages(self, items_max: int) -> None:
        """
        Pages have at most the requested number of records and together return each once; the last has no resume range.
        """
        names = [f"/p/{number}" for number in range(7)]
        async with self.data.open() as store:
            for path in names:
                await create(store, path)
            assert paths(await scan_all(store, KeyRange("/p/", "/p0"), items_max)) == names
            first = await store.scan(KeyRange("/p/", "/p0"), items_max)
            assert paths(list(first.records)) == names[:items_max], "the first of the range come first"

    async def test_pages_while_records_change(self) -> None:
        """
        Records that exist during the whole scan are returned once, whatever is written and deleted between the pages.
        """
        async with self.data.open() as store:
            for number in range(6):
                await create(store, f"/p/{number}")
            page = await store.scan(KeyRange("/p/", "/p0"), 3)
            found = paths(list(page.records))
            await store.delete(Key("/p/2"), Expect.ANY)
            await store.delete(Key("/p/3"), Expect.ANY)
            await create(store, "/p/00")
            assert isinstance(page.resume, KeyRange)
            found += paths(await scan_all(store, page.resume))
            assert [path for path in found if path in ("/p/0", "/p/1", "/p/4", "/p/5")] == [
                "/p/0", "/p/1", "/p/4", "/p/5",
            ]  # fmt: skip
            assert "/p/3" not in found

    async def test_partitions(self) -> None:
        """
        A range with a partition returns only the records of that partition; one without returns all, in key order.
        """
        async with self.data.open() as store:
            for number in range(6):
                partition = ("red", "blue", "")[number % 3]
                await store.put(Put(Key(f"/p/{number}", partition), b"", Expect.ABSENT))
            red = await scan_all(store, KeyRange("/p/", "/p0", "red"), 1)
            assert paths(red) == ["/p/0", "/p/3"]
            assert paths(await scan_all(store, KeyRange("/p/", "/p0"), 2)) == [f"/p/{n}" for n in range(6)]
            assert await scan_all(store, KeyRange("/p/", "/p0", "green")) == []


class IndexRules(MetadataStoreRules):
    """Index scans return records in the order of the index."""

    async def test_order_and_edges(self) -> None:
        """An index range includes its start and excludes its stop, in byte order of the index keys."""
        async with self.data.open() as store:
            await create(store, "/1", b"", b"c")
            await create(store, "/2", b"", b"b\xff")
            await create(store, "/3", b"", b"b")
            await create(store, "/4", b"", b"a")
            assert paths(await scan_kinds(store)) == ["/4", "/3", "/2", "/1"]
            assert paths(await scan_kinds(store, IndexRange(BY_KIND, b"b", b"c"))) == ["/3", "/2"]
            assert await scan_kinds(store, IndexRange(BY_KIND, b"b", b"b")) == []

    async def test_once_for_each_entry(self) -> None:
        """A record with two entries in the range is returned twice; indexes are independent of each other."""
        async with self.data.open() as store:
            other = IndexEntry("suite-other", b"a")
            await store.put(Put(Key("/1"), b"", Expect.ABSENT, (*entries(b"a", b"c"), other)))
            await create(store, "/2", b"", b"b")
            assert paths(await scan_kinds(store)) == ["/1", "/2", "/1"]
            assert paths(await scan_kinds(store, IndexRange("suite-other", b"", b"\xff"))) == ["/1"]
            assert await scan_kinds(store, IndexRange("suite-absent", b"", b"\xff")) == []

    @pytest.mark.parametrize("items_max", [1, 2, 3, 9])
    async def test_pages_among_equal_keys(self, items_max: int) -> None:
        """
        Many records may share an index key; the pages return each of them once and end.

        If this fails, check that the resume point of a page contains the record, not only the index key.
        """
        async with self.data.open() as store:
            for number in range(7):
                await create(store, f"/p/{number}", b"", b"same")
            await create(store, "/p/7", b"", b"tame")
            found = await scan_kinds(store, EVERY_KIND, items_max)
            assert sorted(paths(found)) == [f"/p/{number}" for number in range(8)]
            assert paths(found)[-1] == "/p/7"

    async def test_entries_follow_their_record(self) -> None:
        """
        A put replaces all index entries of the record, a delete removes them, and index scans return the latest record.

        If this fails, check that old entries are removed in the same transaction that writes the record.
        """
        async with self.data.open() as store:
            version = await create(store, "/1", b"one", b"a", b"b")
            version = await store.put(Put(Key("/1"), b"two", version, entries(b"b", b"c")))
            assert [record.value for record in await scan_kinds(store)] == [b"two", b"two"]
            assert await scan_kinds(store, IndexRange(BY_KIND, b"a", b"b")) == []
            version = await store.put(Put(Key("/1"), b"three", version, entries(b"b")))
            (record,) = await scan_kinds(store)
            assert (record.value, record.version) == (b"three", version)
            version = await store.put(Put(Key("/1"), b"four", version))
            assert await scan_kinds(store) == []
            version = await store.put(Put(Key("/1"), b"five", version, entries(b"d")))
            await store.delete(Key("/1"), version)
            assert await scan_kinds(store) == []
            await create(store, "/1", b"six", b"e")
            assert [found.value for found in await scan_kinds(store)] == [b"six"]

    async def test_no_component_is_a_prefix_of_another(self) -> None:
        """
        A range of one component finds entries with that component, not entries that only start with it or resemble it.

        If this fails, check that index keys are stored and compared as bytes, including zero bytes.
        """
        async with self.data.open() as store:
            for number, component in enumerate(AWKWARD_COMPONENTS):
                for rest in ("", "x"):
                    entry = IndexEntry(BY_KIND, encode(component, rest))
                    await store.put(Put(Key(f"/{number}/{rest}"), b"", Expect.ABSENT, (entry,)))
            for number, component in enumerate(AWKWARD_COMPONENTS):
                found = paths(await scan_kinds(store, prefix_range(BY_KIND, component)))
                assert found == [f"/{number}/", f"/{number}/x"], repr(component)

    async def test_partitioned_records_are_found(self) -> None:
        """An index covers all partitions, and returns records with the keys of their puts."""
        async with self.data.open() as store:
            keys = [Key("/p/1", "red"), Key("/p/2", "blue")]
            for key in keys:
                await store.put(Put(key, b"", Expect.ABSENT, entries(b"k")))
            assert [record.key for record in await scan_kinds(store, EVERY_KIND, 1)] == keys


class SequenceRules(MetadataStoreRules):
    """Sequence numbers that the store assigns."""

    async def test_key_of_a_sequential_record(self) -> None:
        """
        A sequential record's path is the prefix, a slash and 20 digits; it has the prefix's partition and index
        entries.
        """
        async with self.data.open() as store:
            prefix = Key("/op/x", "x")
            key = await put_next(store, PutSequential(prefix, b"one", entries(b"k")))
            head, _, number = key.path.rpartition("/")
            assert head == "/op/x"
            assert len(number) == 20
            assert number.isascii()
            assert number.isdigit()
            assert key.partition == "x"
            record = await store.get(key)
            assert record is not None
            assert record.value == b"one"
            assert await scan_kinds(store) == [record]
            assert await scan_all(store, KeyRange("/op/x/", "/op/x0", "x")) == [record]

    async def test_partition_of_a_prefix_without_one(self) -> None:
        """A prefix without a partition belongs to the partition of its own path, and so do the records under it."""
        async with self.data.open() as store:
            key = await put_next(store, PutSequential(Key("/op/x"), b""))
            assert key.partition == "/op/x"
            assert paths(await scan_all(store, KeyRange("/op/x/", "/op/x0", "/op/x"))) == [key.path]

    async def test_numbers_of_many_clients_differ(self) -> None:
        """
        Clients that write under one prefix at the same time get different numbers, and no record is lost.

        If this fails, check that the counter is read and incremented in one step.
        """
        async with self.data.open() as first, self.data.open() as second:
            prefix = Key("/op/x", "x")
            keys = await asyncio.gather(
                *(put_next(store, PutSequential(prefix, b"")) for store in (first, second) * 10)
            )
            assert len(set(keys)) == 20
            assert paths(await scan_all(first, KeyRange("/op/x/", "/op/x0", "x"))) == sorted(key.path for key in keys)

    async def test_numbers_are_not_used_again(self) -> None:
        """
        A number is never reused: after a delete of the highest record, of all records, or after a restart.

        If this fails, check that the counter is stored, not derived from the highest remaining number.
        """
        prefix = Key("/op/x", "x")
        seen: set[str] = set()
        for _ in range(3):
            async with self.data.open() as store:
                for _ in range(3):
                    key = await put_next(store, PutSequential(prefix, b""))
                    assert key.path not in seen
                    seen.add(key.path)
                    await store.delete(key, Expect.ANY)

    async def test_prefixes_are_independent(self) -> None:
        """Records under two prefixes stay separate, even if one prefix starts with the other."""
        async with self.data.open() as store:
            one = await put_next(store, PutSequential(Key("/op/x"), b"one"))
            two = await put_next(store, PutSequential(Key("/op/x-2"), b"two"))
            assert paths(await scan_all(store, KeyRange("/op/x/", "/op/x0"))) == [one.path]
            assert paths(await scan_all(store, KeyRange("/op/x-2/", "/op/x-20"))) == [two.path]
