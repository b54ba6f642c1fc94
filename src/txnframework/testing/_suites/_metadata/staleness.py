"""Rules of repeated reads: a client must not return outdated results of earlier reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.interfaces import IMetadataStore
from txnframework.model import Expect, IndexRange, Key, KeyRange, Put, Record
from txnframework.testing._suites._metadata._case import BY_KIND, MetadataStoreRules, create, entries
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Disconnecting

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
