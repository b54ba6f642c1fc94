"""Rules for lost replies, lost connections and crashes."""

from __future__ import annotations

import pytest

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import IDurableStore, IMetadataStore
from txnframework.model import Expect, Key, KeyRange, Put, PutSequential, Step
from txnframework.testing._suites._metadata._case import (
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
from txnframework.testing.harness import Crashing, Disconnecting


class FaultRules(MetadataStoreRules):
    """What is known after lost replies, lost connections and crashes."""

    @requires(Disconnecting)
    @pytest.mark.parametrize("step", ["create", "change", "delete", "sequential", "batch"])
    async def test_lost_reply(self, step: str) -> None:
        """
        A write that was applied but whose reply was lost raises OutcomeUnknown; a later read finds the write.

        If this fails, check that a connection error after sending is never translated to Unavailable.
        """
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as store:
            version = await create(store, "/a", b"old", b"k")
            await harness.cut(store)
            with pytest.raises(OutcomeUnknown):
                await self.soon(write(store, step, version))
            await harness.restore(store)
            values = [record.value for record in await scan_all(store)]
            expected = {
                "create": [b"old", b"new"],
                "change": [b"new"],
                "delete": [],
                "sequential": [b"old", b"new"],
                "batch": [b"new", b"new"],
            }
            assert values == expected[step]
            assert paths(await scan_kinds(store)) == ([] if step == "delete" else ["/a"])

    @requires(Disconnecting)
    async def test_reading_while_cut_off(self) -> None:
        """A read that cannot reach the store raises Unavailable, and succeeds after the client has reconnected."""
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as store:
            await create(store, "/a", b"one")
            await harness.cut(store)
            with pytest.raises(Unavailable):
                await self.soon(store.get(Key("/a")))
            await harness.restore(store)
            assert await value_of(store, "/a") == b"one"

    @requires(Disconnecting)
    async def test_woken_for_what_was_missed(self) -> None:
        """
        A watch wakes after a lost connection, because records may have changed in the meantime.

        If this fails, check that all watches are woken and armed again after the client has reconnected.
        """
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as store, harness.open() as other:
            watch = await store.watch(KeyRange("/", "0"))
            await harness.cut(store)
            await create(other, "/a")
            await harness.settle()
            await harness.restore(store)
            await self.soon(watch.changed())
            await other.delete(Key("/a"), Expect.ANY)
            await self.soon(watch.changed())

    @requires(Disconnecting)
    async def test_lease_after_a_lost_reply(self) -> None:
        """If the reply to acquiring a lease is lost, acquiring it again in the same session succeeds."""
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as store:
            await harness.cut(store)
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await self.soon(store.acquire_lease("name", "one"))
            await harness.restore(store)
            lease = await store.acquire_lease("name", "one")
            assert await store.get(lease.key) is not None

    @requires(IDurableStore, Crashing)
    async def test_crash_keeps_what_was_confirmed(self) -> None:
        """
        A crash loses no confirmed write and no index entry, and sequence numbers continue.

        If this fails, check that the backend has its log on disk before it confirms a commit.
        """
        harness = self.data
        assert isinstance(harness, Crashing)
        async with harness.open() as store:
            version = await create(store, "/a", b"one", b"k")
            version = await store.put(Put(Key("/a"), b"two", version, entries(b"k")))
            await create(store, "/b", b"", b"k")
            await store.delete(Key("/b"), Expect.ANY)
            key = await put_next(store, PutSequential(Key("/op"), b""))
            await store.delete(key, Expect.ANY)
            await harness.crash(store)
        async with harness.open() as store:
            record = await store.get(Key("/a"))
            assert record is not None
            assert (record.value, record.version) == (b"two", version)
            assert await scan_kinds(store) == [record]
            assert await put_next(store, PutSequential(Key("/op"), b"")) != key


async def write(store: IMetadataStore, step: str, version: int) -> None:
    """Make one of the writes of ``test_lost_reply``."""
    if step == "create":
        await store.put(Put(Key("/b"), b"new", Expect.ABSENT))
    elif step == "change":
        await store.put(Put(Key("/a"), b"new", version, entries(b"k")))
    elif step == "delete":
        await store.delete(Key("/a"), version)
    elif step == "sequential":
        await put_next(store, PutSequential(Key("/op"), b"new"))
    else:
        await store.apply(Step(puts=(Put(Key("/a"), b"new", version, entries(b"k")), PutSequential(Key("/a"), b"new"))))
