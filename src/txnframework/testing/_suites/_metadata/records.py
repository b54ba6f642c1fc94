"""Rules of get, put and delete."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, VersionMismatch
from txnframework.interfaces import IMetadataStore, IRestorable
from txnframework.model import Expect, IndexRange, Key, KeyRange, Put, PutSequential
from txnframework.testing._suites._metadata._case import (
    ALL,
    EVERY_KIND,
    MetadataStoreRules,
    create,
    entries,
    paths,
    put_next,
    scan_all,
    scan_kinds,
    value_of,
)
from txnframework.testing.capabilities import requires

AWKWARD_PATHS = (
    "/a", "/a/b", "/a/b/c", "/a-b", "/a%2Fb", "/a%", "/a:b", "/a~b", "/a b", "/a.b", "/A", "/ä", "/a\u0308", "/\u6f22",
    "/a/b ", "/a_b", "/a*", "/a?b", "/a'b", '/a"b', "/a\\b", "/\U0001f600", "/a" + "x" * 200,
)  # fmt: skip


class RecordRules(MetadataStoreRules):
    """Reads and writes of single records."""

    async def test_keeps_the_interface(self) -> None:
        """
        The store has all methods and attributes of the role, async and with the role's parameters.

        If this fails, check the method that the error names: verify_provider checks more than zope's verifyObject.
        """
        from txnframework.plugin import verify_provider

        async with self.data.open() as store:
            verify_provider(IMetadataStore, store)

    @requires(IRestorable)
    async def test_taking_an_identity(self) -> None:
        """After a store takes an identity, later openings report it, and its records are unchanged."""
        async with self.data.open() as store:
            await create(store, "/kept", b"kept")
            assert IRestorable.providedBy(store)
            for _ in range(2):
                await store.take_identity("restored-1")
                assert store.identity == "restored-1"
        async with self.data.open() as again:
            assert again.identity == "restored-1"
            assert await value_of(again, "/kept") == b"kept"

    async def test_identity_and_session(self) -> None:
        """
        The identity is the same for all clients and after a restart; each opening has its own session.

        If this fails, check that the identity is stored when the store is created, not generated when it is opened.
        """
        async with self.data.open() as first, self.data.open() as second:
            identity = first.identity
            assert identity
            assert second.identity == identity
            assert first.session
            assert first.session != second.session
            earlier = {first.session, second.session}
        async with self.data.open() as again:
            assert again.identity == identity
            assert again.session not in earlier

    async def test_get_absent(self) -> None:
        """Getting an absent record returns None."""
        async with self.data.open() as store:
            assert await store.get(Key("/absent")) is None

    async def test_put_absent_creates(self) -> None:
        """A put that expects absence creates the record; a read returns it with the version that the put returned."""
        async with self.data.open() as store:
            version = await create(store, "/a", b"one")
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.key.path, record.value, record.version) == ("/a", b"one", version)

    async def test_put_absent_on_present_changes_nothing(self) -> None:
        """
        A put that expects absence fails on an existing record, reports the record's version, and changes nothing.

        If this fails, check that the insert is conditional, not "insert or replace".
        """
        async with self.data.open() as store:
            version = await create(store, "/a", b"one", b"k1")
            with pytest.raises(VersionMismatch) as caught:
                await store.put(Put(Key("/a"), b"two", Expect.ABSENT, entries(b"k2")))
            assert (caught.value.key, caught.value.actual) == (Key("/a"), version)
            assert await value_of(store, "/a") == b"one"
            assert paths(await scan_kinds(store, IndexRange(EVERY_KIND.index, b"k2", b"k3"))) == []

    async def test_put_at_version(self) -> None:
        """A put at the current version replaces the value and returns a higher version."""
        async with self.data.open() as store:
            version = await create(store, "/a", b"one")
            for value in (b"two", b"three", b"three"):
                later = await store.put(Put(Key("/a"), value, version))
                assert later > version
                version = later
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.value, record.version) == (b"three", version)

    async def test_put_at_stale_version_changes_nothing(self) -> None:
        """
        A put at an older version fails, and changes neither the record nor its index entries.

        If this fails, check that the condition and the write are one statement of the backend.
        """
        async with self.data.open() as store:
            stale = await create(store, "/a", b"one", b"k1")
            version = await store.put(Put(Key("/a"), b"two", stale, entries(b"k1")))
            with pytest.raises(VersionMismatch) as caught:
                await store.put(Put(Key("/a"), b"three", stale, entries(b"k2")))
            assert caught.value.actual == version
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.value, record.version) == (b"two", version)
            (found,) = await scan_kinds(store)
            assert found == record

    async def test_put_at_version_of_an_absent_record(self) -> None:
        """A put at a version fails on an absent record, and creates none."""
        async with self.data.open() as store:
            with pytest.raises(VersionMismatch) as caught:
                await store.put(Put(Key("/a"), b"one", 1))
            assert caught.value.actual is None
            assert await store.get(Key("/a")) is None
            assert await scan_all(store, KeyRange("/a", "/b")) == []

    async def test_put_any(self) -> None:
        """A put under ANY creates or replaces the record; its version grows each time."""
        async with self.data.open() as store:
            first = await store.put(Put(Key("/a"), b"one", Expect.ANY))
            second = await store.put(Put(Key("/a"), b"two", Expect.ANY))
            assert second > first
            assert await value_of(store, "/a") == b"two"

    async def test_delete_at_version(self) -> None:
        """
        A delete at the current version removes the record; a delete at an older version fails and removes nothing.
        """
        async with self.data.open() as store:
            stale = await create(store, "/a", b"one", b"k")
            version = await store.put(Put(Key("/a"), b"two", stale, entries(b"k")))
            with pytest.raises(VersionMismatch) as caught:
                await store.delete(Key("/a"), stale)
            assert caught.value.actual == version
            assert await value_of(store, "/a") == b"two"
            assert paths(await scan_kinds(store)) == ["/a"]
            await store.delete(Key("/a"), version)
            assert await store.get(Key("/a")) is None
            with pytest.raises(VersionMismatch) as caught:
                await store.delete(Key("/a"), version)
            assert caught.value.actual is None

    async def test_delete_any_or_absent(self) -> None:
        """Deleting an absent record succeeds under ANY and ABSENT; ABSENT never removes a record, ANY always does."""
        async with self.data.open() as store:
            await store.delete(Key("/a"), Expect.ANY)
            await store.delete(Key("/a"), Expect.ABSENT)
            await create(store, "/a", b"one")
            with pytest.raises(VersionMismatch):
                await store.delete(Key("/a"), Expect.ABSENT)
            assert await value_of(store, "/a") == b"one"
            await store.delete(Key("/a"), Expect.ANY)
            assert await store.get(Key("/a")) is None

    async def test_a_record_may_be_made_again(self) -> None:
        """After a delete, all conditions see the record as absent, and it can be created again."""
        async with self.data.open() as store:
            version = await create(store, "/a", b"one")
            await store.delete(Key("/a"), version)
            again = await create(store, "/a", b"two")
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.value, record.version) == (b"two", again)

    @pytest.mark.parametrize("value", [b"", b"\x00", b"\xff\xfe\x00", bytes(range(256)), b"x" * 100_000], ids=range(5))
    async def test_values_are_bytes(self, value: bytes) -> None:
        """A value is read back byte for byte: empty, with zero bytes, not valid text, or 100 kB long."""
        async with self.data.open() as store:
            await create(store, "/a", value)
            assert await value_of(store, "/a") == value
            assert [record.value for record in await scan_all(store, KeyRange("/a", "/b"))] == [value]

    async def test_awkward_keys_stay_apart(self) -> None:
        """
        Keys that differ in case, escapes, spaces, accents or one more component are different records.

        If this fails, check the backend's collation and normalization, and how keys are mapped to its own names.
        """
        async with self.data.open() as store:
            for number, path in enumerate(AWKWARD_PATHS):
                await create(store, path, str(number).encode())
            for number, path in enumerate(AWKWARD_PATHS):
                assert await value_of(store, path) == str(number).encode(), path
            assert paths(await scan_all(store, KeyRange("/", "0"))) == sorted(AWKWARD_PATHS)

    async def test_partition_belongs_to_the_key(self) -> None:
        """A record is read, changed and deleted with its partition, and a scan returns the key with the partition."""
        async with self.data.open() as store:
            key = Key("/p/1", "red")
            version = await store.put(Put(key, b"one", Expect.ABSENT))
            record = await store.get(key)
            assert record is not None
            assert record.key == key
            version = await store.put(Put(key, b"two", version))
            assert [found.key for found in await scan_all(store, KeyRange("/p/", "/p0", "red"))] == [key]
            await store.delete(key, version)
            assert await store.get(key) is None

    async def test_one_of_two_creates_wins(self) -> None:
        """Of two clients that create one record at the same time, exactly one succeeds, and its value is stored."""
        async with self.data.open() as first, self.data.open() as second:
            for number in range(10):
                path = f"/race/{number}"
                outcomes = await asyncio.gather(
                    create(first, path, b"first"), create(second, path, b"second"), return_exceptions=True
                )
                winners = [who for who, outcome in zip((b"first", b"second"), outcomes, strict=True)
                           if not isinstance(outcome, BaseException)]  # fmt: skip
                losses = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert len(winners) == 1, outcomes
                assert isinstance(losses[0], VersionMismatch)
                assert await value_of(first, path) == winners[0]

    async def test_no_update_is_lost(self) -> None:
        """
        Clients that increment one counter by compare-and-set, with retries after conflicts, lose no increment.

        If this fails, check that no other write can happen between the version check and the write.
        """

        async def count_up(store: IMetadataStore, times: int) -> None:
            while times:
                record = await store.get(Key("/counter"))
                assert record is not None
                try:
                    await store.put(Put(Key("/counter"), str(int(record.value) + 1).encode(), record.version))
                    times -= 1
                except VersionMismatch:
                    continue

        async with self.data.open() as first, self.data.open() as second:
            await create(first, "/counter", b"0")
            await asyncio.gather(*(count_up(store, 5) for store in (first, second, first, second)))
            assert await value_of(first, "/counter") == b"20"

    async def test_reads_see_confirmed_writes_of_others(self) -> None:
        """
        After a client's write or delete is confirmed, each get, scan and scan_index of another client sees it.

        If this fails, check caches and followers: read where writes are confirmed, or catch up first.
        """
        async with self.data.open() as writer, self.data.open() as reader:
            version = None
            for number in range(10):
                value = str(number).encode()
                expected = Expect.ABSENT if version is None else version
                version = await writer.put(Put(Key("/a"), value, expected, entries(b"k" + value)))
                record = await reader.get(Key("/a"))
                assert record is not None
                assert record.value == value
                assert await scan_all(reader, ALL) == [record]
                assert await scan_kinds(reader, IndexRange(EVERY_KIND.index, b"k" + value, b"l")) == [record]
            assert version is not None
            await writer.delete(Key("/a"), version)
            assert await reader.get(Key("/a")) is None
            assert await scan_all(reader) == []
            assert await scan_kinds(reader) == []

    async def test_restart_keeps_everything(self) -> None:
        """After all clients were closed, a new client reads the records with their versions and index entries."""
        async with self.data.open() as store:
            version = await create(store, "/a", b"one", b"k")
            await create(store, "/b", b"two")
            await store.delete(Key("/b"), Expect.ANY)
        async with self.data.open() as store:
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.value, record.version) == (b"one", version)
            assert paths(await scan_all(store)) == ["/a"]
            assert paths(await scan_kinds(store)) == ["/a"]
            assert await store.put(Put(Key("/a"), b"three", version)) > version

    async def test_cancelled_put_is_whole_or_not_at_all(self) -> None:
        """
        After a cancelled put, the record and its index entries match, and the store remains usable.

        If this fails, check what happens to the driver's call and its connection when the caller is cancelled.
        """
        async with self.data.open() as store:
            version = await create(store, "/a", b"0", b"k0")
            for number in range(1, 8):
                value = str(number).encode()
                put = Put(Key("/a"), value, version, entries(b"k" + value))
                task = asyncio.ensure_future(store.put(put))
                for _ in range(number - 1):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self.data.settle()
                record = await store.get(Key("/a"))
                assert record is not None
                (found,) = await scan_kinds(store, IndexRange(EVERY_KIND.index, b"k" + record.value, b"l"))
                assert found == record
                version = record.version

    async def test_closed(self) -> None:
        """After close, all methods raise Closed; close may be repeated."""
        async with self.data.open() as store:
            await create(store, "/a")
            await store.close()
            await store.close()
            key = Key("/a")
            calls = (
                lambda: store.get(key),
                lambda: store.put(Put(key, b"", Expect.ANY)),
                lambda: store.delete(key, Expect.ANY),
                lambda: put_next(store, PutSequential(key, b"")),
                lambda: store.scan(ALL, 1),
                lambda: store.scan_index(EVERY_KIND, 1),
                lambda: store.watch(key),
                lambda: store.acquire_lease("name", "holder"),
                lambda: store.break_lease("name", 1),
            )
            for call in calls:
                with pytest.raises(Closed):
                    await call()
