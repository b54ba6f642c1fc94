"""Rules of reads: long names, large pages, and no outdated results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from txnframework.interfaces import IMetadataStore
from txnframework.model import Check, Delete, Expect, IndexRange, Key, KeyRange, Put, Record, RecordPage, Step
from txnframework.model import paths as places
from txnframework.model.index_keys import encode, prefix_range
from txnframework.model.metadata import IndexEntry
from txnframework.testing._suites._base import longest_name, longest_segment
from txnframework.testing._suites._metadata._case import (
    BY_KIND,
    EVERY_KIND,
    MetadataStoreRules,
    create,
    entries,
    paths,
    scan_all,
    scan_kinds,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Disconnecting

BY_NAME = "suite-by-segment-and-subscription"


def _keys() -> list[Key]:
    """Return the keys that grow most with the names, including names that differ only at the end."""
    segments = [longest_segment(1), longest_segment(2)]
    subscriptions = [longest_name(3), longest_name(4), longest_name(4)[:-1] + "b"]
    cursors = [places.cursor_key(segment, name) for segment in segments for name in subscriptions]
    return [*cursors, places.subscription_key(segments[0], subscriptions[0]), places.application_key(longest_name(5))]


class NameRules(MetadataStoreRules):
    """The store accepts names of NAME_BYTES_MAX bytes in which every byte is escaped."""

    async def test_longest_names(self) -> None:
        """
        Records and index entries whose keys contain the longest names are written, read, listed and deleted.

        If this fails, check the store's limits for the length of a key and of an index row.
        """
        async with self.data.open() as store:
            for number, key in enumerate(_keys()):
                entry = IndexEntry(BY_NAME, encode(key.partition, longest_name(number)))
                written = await store.put(Put(key, b"%d" % number, Expect.ABSENT, (entry,)))
                found = await store.get(key)
                assert found is not None
                assert (found.value, found.version) == (b"%d" % number, written)
        async with self.data.open() as again:
            assert paths(await scan_all(again)) == sorted(key.path for key in _keys())
            segment = longest_segment(1)
            assert paths(await scan_all(again, places.cursors_range(segment), 2)) == sorted(
                key.path for key in _keys()[:3]
            )
            # Two entries with equal index keys: the resume point of a page contains such a name too.
            for number, key in enumerate(_keys()):
                of_name = prefix_range(BY_NAME, key.partition, longest_name(number))
                assert paths(await scan_kinds(again, of_name, 1)) == [key.path]
            for key in _keys():
                await again.delete(key, Expect.ANY)
            assert await scan_all(again) == []

    async def test_longest_names_in_one_batch(self) -> None:
        """A batch over records with such keys is applied like any other batch."""
        first, second, third = _keys()[:3]
        async with self.data.open() as store:
            version = await store.put(Put(first, b"a", Expect.ABSENT))
            await store.put(Put(third, b"c", Expect.ABSENT))
            batch = Step((Check(first, version),), (Put(second, b"b", Expect.ABSENT),), (Delete(third, Expect.ANY),))
            await store.apply(batch)
            assert paths(await scan_all(store)) == sorted((first.path, second.path))

    async def test_lease_of_longest_names(self) -> None:
        """A lease whose name contains the two longest names is acquired and released."""
        name = f"dispatch {longest_name(3)} of {longest_segment(1)}"
        async with self.data.open() as store:
            lease = await store.acquire_lease(name, "holder")
            assert lease.key == places.lease_key(name)
            assert await store.get(lease.key) is not None
            await lease.release()
            assert await store.get(lease.key) is None


RECORDS = 1_050
PAGES = (101, 1_000)
FIRST_PAGES = (501, 2_000)
"""The largest page that a family requests has 1,000 records; reads are limited because some backends are slow."""

KEYS = KeyRange("/p/", "/p0")
_TOGETHER = 50


class PageRules(MetadataStoreRules):
    """A page of small records has as many records as requested."""

    async def test_large_pages(self) -> None:
        """
        A page has as many records as requested, and the pages together return each record once.

        If this fails, check for a row limit per answer in the backend or its driver.
        """
        async with self.data.open() as store:
            names = await _made(store)
            for items_max in PAGES:
                assert paths(await scan_all(store, KEYS, items_max)) == names, f"in pages of {items_max}"
            for items_max in FIRST_PAGES:
                _check_first(await store.scan(KEYS, items_max), names, items_max)

    async def test_large_pages_of_an_index(self) -> None:
        """
        A page of an index has as many records as requested, also among equal index keys.

        If this fails, check for a row limit per answer in the backend or its driver.
        """
        async with self.data.open() as store:
            names = await _made(store)
            for items_max in PAGES:
                found = paths(await scan_kinds(store, EVERY_KIND, items_max))
                assert sorted(found) == names, f"in pages of {items_max}"
            for items_max in FIRST_PAGES:
                _check_first(await store.scan_index(EVERY_KIND, items_max), found, items_max)
            half = [path for number, path in enumerate(names) if number % 2]
            among = IndexRange(EVERY_KIND.index, b"1", b"2")
            assert sorted(paths(await scan_kinds(store, among, 1_000))) == half


def _check_first(page: RecordPage, names: list[str], items_max: int) -> None:
    found = paths(list(page.records))
    assert found == names[:items_max], f"{len(found)} records where {items_max} were asked for"
    assert (page.resume is None) <= (items_max >= RECORDS), f"a page of {items_max} does not say that there is more"


async def _made(store: IMetadataStore) -> list[str]:
    """Create records with index entries of two kinds; return their paths in order."""
    names = [f"/p/{number:04}" for number in range(RECORDS)]
    for first in range(0, RECORDS, _TOGETHER):
        puts: list[Awaitable[int]] = [
            store.put(Put(Key(path), b"", Expect.ABSENT, entries(b"%d" % (number % 2))))
            for number, path in enumerate(names[first : first + _TOGETHER], first)
        ]
        await asyncio.gather(*puts)
    return names


PATH = "/w/1"
RANGES = (KeyRange("/w/", "/w0"), KeyRange("/w/", "/w0", "red"), KeyRange("/", "0"))
INDEX = IndexRange(BY_KIND, b"k", b"l")


def reads_of(store: IMetadataStore) -> dict[str, Callable[[], Awaitable[tuple[Record, ...]]]]:
    """Return all kinds of reads of the tests' record, by name; each is repeated with the same range."""

    async def got() -> tuple[Record, ...]:
        record = await store.get(Key(PATH, "red"))
        return () if record is None else (record,)

    async def scanned(keys: KeyRange, items_max: int) -> tuple[Record, ...]:
        return (await store.scan(keys, items_max)).records

    async def indexed(items_max: int) -> tuple[Record, ...]:
        return (await store.scan_index(INDEX, items_max)).records

    found: dict[str, Callable[[], Awaitable[tuple[Record, ...]]]] = {"get": got}
    for items_max in (1, 1_000):
        for keys in RANGES:
            found[f"scan of {keys}, {items_max}"] = lambda keys=keys, items_max=items_max: scanned(keys, items_max)  # type: ignore[misc]
        found[f"scan_index, {items_max}"] = lambda items_max=items_max: indexed(items_max)  # type: ignore[misc]
    return found


class StalenessRules(MetadataStoreRules):
    """Each read sees all writes that were confirmed before it began, whatever was read before."""

    async def test_reads_that_are_repeated(self) -> None:
        """
        A repeated read sees the record's creation, changes, deletion and re-creation.

        If this fails, check what the client caches, including that a record is absent.
        """
        async with self.data.open() as writer, self.data.open() as reader:
            key = Key(PATH, "red")
            reads = {
                (who, name): read
                for who, store in (("another client", reader), ("the writer", writer))
                for name, read in reads_of(store).items()
            }
            for _ in range(2):
                for name, read in reads.items():
                    assert await read() == (), f"{name} finds what is not there"
                for number in range(2):
                    await writer.put(Put(key, b"%d" % number, Expect.ANY, entries(b"k")))
                    for name, read in reads.items():
                        values = [record.value for record in await read()]
                        assert values == [b"%d" % number], f"{name} finds {values} after {number} was confirmed"
                await writer.delete(key, Expect.ANY)

    async def test_reads_after_a_wake_up(self) -> None:
        """After a wake-up, each kind of read finds the change that caused it."""
        async with self.data.open() as writer, self.data.open() as reader:
            for target in (Key(PATH, "red"), RANGES[0], INDEX):
                watch = await reader.watch(target)
                for name, read in reads_of(reader).items():
                    before = [record.value for record in await read()]
                    value = f"{target} {name}".encode()
                    await writer.put(Put(Key(PATH, "red"), value, Expect.ANY, entries(b"k")))
                    await self.soon(watch.changed())
                    values = [record.value for record in await read()]
                    assert values == [value], f"{name} finds {values} after a wake-up, and found {before} before"
                await watch.close()

    @requires(Disconnecting)
    async def test_reads_after_a_lost_connection(self) -> None:
        """
        The first read after a lost connection finds what was written in the meantime, whatever was read before.

        If this fails, check what the client caches: no notification reported that the cached result is outdated.
        """
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as writer, harness.open() as reader:
            for number, (name, read) in enumerate(reads_of(reader).items()):
                before = f"before {number}".encode()
                await writer.put(Put(Key(PATH, "red"), before, Expect.ANY, entries(b"k")))
                await self.data.settle()
                assert [record.value for record in await read()] == [before], name
                await harness.cut(reader)
                value = f"while it was cut off {number}".encode()
                await writer.put(Put(Key(PATH, "red"), value, Expect.ANY, entries(b"k")))
                await harness.restore(reader)
                values = [record.value for record in await self.soon(read())]
                assert values == [value], f"{name} finds {values} after a lost connection"

    async def test_pages_that_are_resumed(self) -> None:
        """A page finds the records that were written in its range, however often it was read before."""
        async with self.data.open() as writer, self.data.open() as reader:
            for number in range(4):
                await create(writer, f"/w/{number}")
            page = await reader.scan(RANGES[0], 2)
            assert isinstance(page.resume, KeyRange)
            for number in range(4, 7):
                found = [record.key.path for record in (await reader.scan(page.resume, 100)).records]
                assert found == [f"/w/{one}" for one in range(2, number)]
                await create(writer, f"/w/{number}")
