"""Rules of ICopyableMetadataStore."""

from __future__ import annotations

from txnframework.interfaces import ICopyableMetadataStore, IMetadataStore
from txnframework.model import (
    Expect,
    IndexedRecord,
    IndexRange,
    IndexReference,
    Key,
    KeyRange,
    Put,
    PutSequential,
)
from txnframework.testing._suites._metadata._case import (
    ALL,
    BY_KIND,
    EVERY_KIND,
    MetadataStoreRules,
    create,
    entries,
    put_next,
    scan_all,
    scan_kinds,
)
from txnframework.testing.capabilities import requires

_COUNTED = 10**19


def copyable(store: IMetadataStore) -> ICopyableMetadataStore:
    """Return the store as an ICopyableMetadataStore, which it must declare."""
    assert ICopyableMetadataStore.providedBy(store)
    return store


async def indexed_records(
    store: ICopyableMetadataStore, keys: KeyRange = ALL, items_max: int = 100
) -> list[IndexedRecord]:
    """Return the records of a range with their index entries, read in pages."""
    found: list[IndexedRecord] = []
    left: KeyRange | None = keys
    while left is not None:
        page = await store.scan_indexed(left, items_max)
        assert page.records or page.resume is None, "an empty page that is not the last"
        found += page.records
        left = page.resume
    return found


async def lines_of(
    store: ICopyableMetadataStore, among: IndexRange = EVERY_KIND, items_max: int = 100
) -> list[IndexReference]:
    """Return the entries of an index, read in pages."""
    found: list[IndexReference] = []
    left: IndexRange | None = among
    while left is not None:
        page = await store.scan_entries(left, items_max)
        assert len(page.lines) <= items_max
        assert page.lines or page.resume is None, "an empty page that is not the last"
        found += page.lines
        left = page.resume
    return found


class RecordCopyRules(MetadataStoreRules):
    """Records can be read with their index entries, and another store's numbers can be continued."""

    @requires(ICopyableMetadataStore)
    async def test_records_with_their_entries(self) -> None:
        """Pages of records with index entries hold what a scan and the puts say, in every partition."""
        async with self.data.open() as opened:
            store = copyable(opened)
            await create(store, "/a", b"1", b"k2", b"k1")
            await create(store, "/b", b"2")
            for partition in ("p", "q", ""):
                await store.put(Put(Key("/c", partition), partition.encode(), Expect.ABSENT, entries(b"k1")))
            await store.put(Put(Key("/d/e", "q"), b"3", Expect.ABSENT, entries(b"k3")))
            await store.put(Put(Key("/d/e", "q"), b"4", Expect.ANY, entries(b"k4")))
            found = await indexed_records(store)
            assert [one.record for one in found] == await scan_all(store, items_max=100)
            expected = {"/a": entries(b"k1", b"k2"), "/b": (), "/c": entries(b"k1"), "/d/e": entries(b"k4")}
            assert [one.indexes for one in found] == [expected[one.record.key.path] for one in found]
            for items_max in (1, 2, 3):
                assert await indexed_records(store, ALL, items_max) == found
            in_q = [one.record.key for one in await indexed_records(store, KeyRange("/", "0", "q"))]
            assert in_q == [Key("/c", "q"), Key("/d/e", "q")]

    @requires(ICopyableMetadataStore)
    async def test_lines_of_an_index(self) -> None:
        """Pages of an index hold each entry with the key of its record, in order."""
        async with self.data.open() as opened:
            store = copyable(opened)
            for name, kinds in (("/a", (b"k1", b"k3")), ("/b", (b"k1",)), ("/c", (b"k2",)), ("/gone", (b"k2",))):
                await create(store, name, b"", *kinds)
            await store.delete(Key("/gone"), Expect.ANY)
            await store.put(Put(Key("/b", "p"), b"", Expect.ABSENT, entries(b"k1")))
            found = await lines_of(store)
            assert [one.entry.key for one in found] == [b"k1", b"k1", b"k1", b"k2", b"k3"]
            assert {one.entry.index for one in found} == {BY_KIND}
            assert [one.key for one in found] == [record.key for record in await scan_kinds(store)]
            for items_max in (1, 2):
                assert await lines_of(store, EVERY_KIND, items_max) == found
            assert [one.key.path for one in await lines_of(store, IndexRange(BY_KIND, b"k2", b"k3"))] == ["/c"]
            assert await lines_of(store, IndexRange("absent", b"", b"\xff")) == []

    @requires(ICopyableMetadataStore)
    async def test_numbers_are_not_given_again(self) -> None:
        """
        After a store skipped the numbers of another one, it gives none of them, also for a prefix that was copied.

        If this fails, an operation of a copied transaction may get the number of an earlier one.
        """
        async with self.data.open() as opened:
            store = copyable(opened)
            prefix = Key("/suite/op", "p")
            given = [await put_next(store, PutSequential(prefix, b"")) for _ in range(3)]
            await store.delete(given[-1], Expect.ANY)
            last = await store.last_number()
            assert max(_number_of(key) for key in given) <= last
            await store.skip_numbers(last + 5_000)
            await store.skip_numbers(1)
            more = [await put_next(store, PutSequential(prefix, b"")) for _ in range(3)]
            assert min(_number_of(key) for key in more) > last + 5_000
            assert await store.last_number() >= max(_number_of(key) for key in more)
        async with self.data.open() as opened:
            number = _number_of(await put_next(opened, PutSequential(Key("/suite/other", "q"), b"")))
            assert number > last + 5_000


def _number_of(key: Key) -> int:
    """Return the number of a sequential record, without its first digit."""
    return int(key.path.rpartition("/")[2]) % _COUNTED
