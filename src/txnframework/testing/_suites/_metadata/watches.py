"""Rules of IWatch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from txnframework.errors import Closed
from txnframework.interfaces import IMetadataStore, IValueWatch, IWatch
from txnframework.model import Expect, IndexRange, Key, KeyRange, Put, PutSequential, Record, Step
from txnframework.testing._suites._metadata._case import BY_KIND, MetadataStoreRules, create, entries, put_next
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Misleading

WAKES_MAX = 20
"""Wake-ups may repeat; a watch that wakes more often than this without a change never stops."""

Target = Key | KeyRange | IndexRange

TARGETS = [
    pytest.param(Key("/w/1"), id="record"),
    pytest.param(KeyRange("/w/", "/w0"), id="range"),
    pytest.param(IndexRange(BY_KIND, b"k", b"l"), id="index"),
]


async def put(store: IMetadataStore, value: bytes, *kinds: bytes) -> None:
    """Write the record that the targets watch, with its index entries."""
    await store.put(Put(Key("/w/1"), value, Expect.ANY, entries(*kinds)))


class WatchRules(MetadataStoreRules):
    """Watches wake for all changes of their target."""

    @pytest.mark.parametrize("target", TARGETS)
    async def test_woken_by_create_change_and_delete(self, target: Target) -> None:
        """
        A watch wakes when a record is created, changed and deleted, by the same client or another one.

        If this fails only for the index, check changes of a record that leave its index entries as they are.
        """
        async with self.data.open() as one, self.data.open() as two:
            for writer in (one, two):
                watch = await one.watch(target)
                steps: tuple[Callable[[], Awaitable[object]], ...] = (
                    lambda writer=writer: put(writer, b"made", b"k"),  # type: ignore[misc]
                    lambda writer=writer: put(writer, b"changed", b"k"),  # type: ignore[misc]
                    lambda writer=writer: writer.delete(Key("/w/1"), Expect.ANY),  # type: ignore[misc]
                )
                for step in steps:
                    await self.drain(watch)
                    await step()
                    await self.soon(watch.changed())
                await watch.close()

    @pytest.mark.parametrize("target", TARGETS)
    async def test_armed_when_handed_out(self, target: Target) -> None:
        """
        A change between ``watch`` and ``changed`` is not missed.

        If this fails, check that the watch is registered before ``watch`` returns, not when ``changed`` is called.
        """
        async with self.data.open() as store, self.data.open() as other:
            watch = await store.watch(target)
            await put(other, b"made", b"k")
            await self.soon(watch.changed())

    async def test_what_a_watch_tells_was_written(self) -> None:
        """
        ``told`` is None or the whole value of the last reported change; after a delete it is None.

        If this fails, check that a change that carries no value clears the value of an earlier change.
        """
        async with self.data.open() as one, self.data.open() as two:
            version = await one.put(Put(Key("/w/1"), b"made", Expect.ABSENT, entries(b"k")))
            watch = await two.watch(Key("/w/1"))
            if not IValueWatch.providedBy(watch):
                return
            for value, kind in ((b"moved", b"l"), (b"moved on " + b"x" * 5_000, b"m"), ('ä\0"\\'.encode(), b"n")):
                await self.drain(watch)
                version = await one.put(Put(Key("/w/1"), value, version, entries(kind)))
                await self.soon(watch.changed())
                assert watch.value in (value, None)
            await self.drain(watch)
            await one.delete(Key("/w/1"), version)
            await self.soon(watch.changed())
            assert watch.value is None

    @requires(Misleading)
    async def test_a_hint_is_no_more_than_a_hint(self) -> None:
        """
        A false notification wakes the watch, but changes neither ``told`` nor the result of any read.

        If this fails, check that the client keeps nothing of a notification: values of ``told`` are read from the
        store.
        """
        assert isinstance(self.data, Misleading)
        async with self.data.open() as store, self.data.open() as other:
            version = await other.put(Put(Key("/w/1"), b"true", Expect.ABSENT, entries(b"k")))
            watch = await store.watch(Key("/w/1"))
            for _ in range(2):
                await self.drain(watch)
                await self.data.mislead(store, Key("/w/1"))
                await self.soon(watch.changed())
                # The second watch is armed after the notification was received.
                for told in (watch, await store.watch(Key("/w/1"))):
                    assert not IValueWatch.providedBy(told) or told.value in (None, b"true")
                assert await store.get(Key("/w/1")) == Record(Key("/w/1"), b"true", version)
                page = await store.scan_index(IndexRange(BY_KIND, b"", b"\xff"), 10)
                assert [(record.value, record.version) for record in page.records] == [(b"true", version)]

    async def test_index_watch_wakes_when_a_record_leaves(self) -> None:
        """A watch on an index range wakes when a record's entry leaves the range while the record remains."""
        async with self.data.open() as store:
            await put(store, b"", b"k")
            watch = await store.watch(IndexRange(BY_KIND, b"k", b"l"))
            await put(store, b"", b"m")
            await self.soon(watch.changed())

    async def test_woken_by_a_sequential_record(self) -> None:
        """A watch on a range wakes for a sequential record."""
        async with self.data.open() as store, self.data.open() as other:
            watch = await store.watch(KeyRange("/w/", "/w0"))
            await put_next(other, PutSequential(Key("/w/op"), b""))
            await self.soon(watch.changed())

    async def test_woken_by_a_batch(self) -> None:
        """A watch wakes for the writes and deletes of a batch."""
        async with self.data.open() as store, self.data.open() as other:
            watch = await store.watch(IndexRange(BY_KIND, b"k", b"l"))
            await other.apply(Step(puts=(Put(Key("/w/1"), b"", Expect.ABSENT, entries(b"k")),)))
            await self.soon(watch.changed())

    @pytest.mark.parametrize("target", TARGETS)
    async def test_not_woken_for_ever(self, target: Target) -> None:
        """
        After a change, the watch stays quiet until the next one.

        If this fails, check that a ``changed`` that returns consumes its wake-up.
        """
        async with self.data.open() as store:
            watch = await store.watch(target)
            await put(store, b"made", b"k")
            await self.soon(watch.changed())
            await self.drain(watch)
            await put(store, b"again", b"k")
            await self.soon(watch.changed())

    async def test_cancelled_wait_misses_nothing(self) -> None:
        """
        After a cancelled ``changed`` the watch is still armed; the next call reports a change made during the
        cancellation.

        If this fails, check that only a ``changed`` that returns consumes the wake-up.
        """
        async with self.data.open() as store:
            watch = await store.watch(Key("/w/1"))
            async with self.started(watch.changed()):
                pass
            async with self.started(watch.changed()) as waiting:
                await put(store, b"made")
                waiting.cancel()
            if waiting.cancelled():
                await self.soon(watch.changed())

    async def test_two_watches_both_wake(self) -> None:
        """All watches on one record wake, and closing one leaves the others armed."""
        async with self.data.open() as store:
            first, second = await store.watch(Key("/w/1")), await store.watch(Key("/w/1"))
            await create(store, "/w/1")
            await self.soon(first.changed())
            await self.soon(second.changed())
            await first.close()
            await store.delete(Key("/w/1"), Expect.ANY)
            await self.soon(second.changed())

    async def test_closed_watch(self) -> None:
        """Closing a watch ends a waiting ``changed``, and each later one, with Closed; close may be repeated."""
        async with self.data.open() as store:
            watch = await store.watch(Key("/w/1"))
            async with self.started(self.ended(watch)) as waiting:
                await watch.close()
                await watch.close()
                await self.soon(waiting)
            with pytest.raises(Closed):
                await self.soon(watch.changed())

    async def test_closed_store_closes_its_watches(self) -> None:
        """
        Closing the store ends a waiting ``changed`` with Closed, so that no caller waits permanently on a closed store.
        """
        async with self.data.open() as store:
            watch = await store.watch(KeyRange("/w/", "/w0"))
            async with self.started(self.ended(watch)) as waiting:
                await store.close()
                await self.soon(waiting)

    async def drain(self, watch: IWatch) -> None:
        """Consume the wake-ups in flight; fail if they never end."""
        __tracebackhide__ = True
        for _ in range(WAKES_MAX):
            async with self.started(watch.changed()) as waiting:
                if not waiting.done():
                    return
                await waiting
        pytest.fail(f"still woken after {WAKES_MAX} times without a change")

    async def ended(self, watch: IWatch) -> None:
        """Wait until the watch is closed."""
        try:
            while True:
                await watch.changed()
        except Closed:
            return
