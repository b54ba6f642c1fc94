"""Watches wake whenever the watched records may have changed, also when no event could be delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Closed, Unavailable
from txnframework.interfaces import IValueWatch, IWatch
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore, open_metadata_store
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.connection._requests import NodeRequest
from txnframework_zookeeper.connection._session import SessionState
from txnframework_zookeeper.testing._clients import WAIT_S, Seen, expire
from txnframework_zookeeper.testing._proxies import ReplyProxy, reply_proxy
from txnframework_zookeeper.testing.servers.frames import Operation
from txnframework_zookeeper.tree._layout import node_of

RECORD = Key("/watched/a")
ENTRY = IndexEntry("index", b"\x20x\0")
TARGETS = {
    "record": RECORD,
    "range": KeyRange("/watched/", "/watched0"),
    "index": IndexRange("index", b"\x20x", b"\x20y"),
}
LEVELS_MAX = 8
"""How many nodes below each other a range of these tests has, at most."""
TOLD_MAX = 3


def run_through_proxy(url: str, story: Callable[[ZooKeeperMetadataStore, ReplyProxy], Awaitable[None]]) -> None:
    async def main() -> None:
        async with reply_proxy(url) as (proxy, through):
            store = await open_metadata_store(through, SystemEnvironment(), MetadataOptions())
            try:
                await story(store, proxy)
            finally:
                proxy.let_through()
                await store.close()

    asyncio.run(main())


async def wakes(watch: IWatch) -> None:
    await asyncio.wait_for(watch.changed(), WAIT_S)


async def waiting_for(watch: IWatch, store: ZooKeeperMetadataStore) -> asyncio.Task[None]:
    """Return once a caller waits for a change, with the future that the change completes."""
    waiting = asyncio.ensure_future(wakes(watch))
    # What it asks before it waits is asked by then, and answered before what is asked now.
    await settle(store)
    return waiting


async def settle(store: ZooKeeperMetadataStore) -> None:
    """
    Return once all events have been delivered and the requests that they cause are answered.

    Events come before the answers to requests; a range is requested level by level.
    """
    for _ in range(LEVELS_MAX):
        await store.zookeeper.sync()


async def sleeps(watch: IWatch, store: ZooKeeperMetadataStore) -> None:
    """Take what a change has told several times, then see that nothing comes any more."""
    for _ in range(TOLD_MAX):
        waiting = asyncio.ensure_future(watch.changed())
        await settle(store)
        if not waiting.done():
            waiting.cancel()
            return
    raise AssertionError(f"one change was told more than {TOLD_MAX} times")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
async def test_a_watch_wakes_for_every_change_and_for_no_other(
    target: Key | KeyRange | IndexRange, store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """Another process creates, writes, removes and recreates the record; changes of neighbours wake no watch."""
    watch = await store.watch(target)
    for _ in range(3):
        await other.put(Put(RECORD, b"1", Expect.ABSENT, (ENTRY,)))
        await wakes(watch)
        await sleeps(watch, store)
        await other.put(Put(RECORD, b"2", Expect.ANY, (ENTRY,)))
        await wakes(watch)
        await sleeps(watch, store)
        # What is beside it in an index may wake, and changes nothing.
        await other.put(Put(Key("/watchee/b"), b"", Expect.ANY, (IndexEntry("other", b"\x20x\0"),)))
        await sleeps(watch, store)
        await other.delete(RECORD, Expect.ANY)
        await wakes(watch)
        await sleeps(watch, store)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("loss", ["connection", "session"])
async def test_a_watch_wakes_when_it_may_have_missed_something(
    target: Key | KeyRange | IndexRange, loss: str, store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """No events arrive while there is no connection; afterwards, the watch is armed again."""
    watch = await store.watch(target)
    seen = Seen(store.zookeeper)
    if loss == "session":
        await expire(store.zookeeper)
    else:
        store.zookeeper.session.cut()
        await seen.until(SessionState.SUSPENDED, SessionState.BACK)
    await wakes(watch)
    await sleeps(watch, store)
    await other.put(Put(RECORD, b"1", Expect.ABSENT, (ENTRY,)))
    await wakes(watch)


async def test_two_watches_of_one_place_end_one_by_one(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """A place is watched until its last watch ends, and can be watched again."""
    one, two = await store.watch(RECORD), await store.watch(RECORD)
    waiting = await waiting_for(one, store)
    await one.close()
    with pytest.raises(Closed):
        await waiting
    await other.put(Put(RECORD, b"1", Expect.ABSENT))
    await wakes(two)
    await two.close()
    assert store._watches._by_node == {}
    three = await store.watch(RECORD)
    await other.put(Put(RECORD, b"2", Expect.ANY))
    await wakes(three)
    await store.close()
    with pytest.raises(Closed):
        await three.changed()


@pytest.mark.parametrize("options", [MetadataOptions(watches_max=3)])
async def test_what_is_watched_is_bounded(store: ZooKeeperMetadataStore) -> None:
    """The error names the option; records that are already watched can get more watches."""
    watches = [await store.watch(Key(f"/watched/{name}")) for name in "abc"]
    with pytest.raises(Unavailable, match="watches_max"):
        await store.watch(Key("/watched/d"))
    watches.append(await store.watch(Key("/watched/a")))
    await watches[1].close()
    await store.watch(Key("/watched/d"))


async def _asked(story: Awaitable[object], store: ZooKeeperMetadataStore) -> list[str]:
    """Return what a store asks the servers of the record, kind by kind, while something is done."""
    session, asked = store.zookeeper.session, []
    node = store.zookeeper.full(node_of(RECORD))
    submit = session.submit

    def noting(request: object, reply: object, session_id: int | None = None) -> None:
        if isinstance(request, NodeRequest) and request.path == node:
            asked.append(type(request).__name__ + ("AndWatch" if request.watcher else ""))
        submit(request, reply, session_id)

    session.submit = noting  # type: ignore[method-assign,assignment]
    try:
        await story
    finally:
        session.submit = submit  # type: ignore[method-assign]
    return asked


async def test_waiting_for_the_change_of_a_record_takes_two_reads(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """One read arms the watch, and one follows the change and returns the record; then no watch must be removed."""
    version = await other.put(Put(RECORD, b"open", Expect.ABSENT))

    async def follow() -> None:
        watch = await store.watch(RECORD)
        assert IValueWatch.providedBy(watch)
        assert watch.value == b"open"
        waiting = await waiting_for(watch, store)
        await other.put(Put(RECORD, b"committed", version))
        await waiting
        assert watch.value == b"committed"
        await watch.close()

    assert await _asked(follow(), store) == ["GetAndWatch", "Get"]


async def test_changes_while_nobody_waits_are_looked_at_once(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """However many changes happened, the next waiter gets the last one, and waits if there was none."""
    version = await other.put(Put(RECORD, b"0", Expect.ABSENT))
    watch = await store.watch(RECORD)
    assert IValueWatch.providedBy(watch)

    async def change() -> None:
        nonlocal version
        for value in (b"1", b"2", b"3"):
            version = await other.put(Put(RECORD, value, version))
            await settle(other)

    assert await _asked(change(), store) == []
    await settle(store)
    assert await _asked(wakes(watch), store) == ["GetAndWatch"]
    assert watch.value == b"3"
    assert await _asked(sleeps(watch, store), store) == []


async def test_what_changed_between_a_wake_up_and_the_next_waiting_is_told(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """The servers send no event in between; the read at the start of the wait finds the change."""
    version = await other.put(Put(RECORD, b"0", Expect.ABSENT))
    watch = await store.watch(RECORD)
    waiting = await waiting_for(watch, store)
    version = await other.put(Put(RECORD, b"1", version))
    await waiting
    await other.put(Put(RECORD, b"2", version))
    await wakes(watch)
    await other.delete(RECORD, Expect.ANY)
    await wakes(watch)
    await other.put(Put(RECORD, b"3", Expect.ABSENT))
    await other.delete(RECORD, Expect.ANY)
    await wakes(watch)


async def test_a_watch_that_is_given_back_costs_nothing(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """No request is sent for it, then or when the record changes."""
    one, two = await store.watch(RECORD), await store.watch(RECORD)

    async def go() -> None:
        await one.close()
        await two.close()
        await other.put(Put(RECORD, b"1", Expect.ABSENT))
        await settle(store)

    assert await _asked(go(), store) == []
    assert store._watches._by_node == {}


@pytest.mark.parametrize("options", [MetadataOptions(value_in_record_bytes_max=1000)])
async def test_a_value_in_chunks_is_not_brought_along(store: ZooKeeperMetadataStore) -> None:
    """The node of such a record has only the location of its chunks."""
    await store.put(Put(RECORD, b"x" * 2_000, Expect.ABSENT))
    watch = await store.watch(RECORD)
    assert IValueWatch.providedBy(watch)
    assert watch.value is None


@pytest.mark.parametrize("until", [Operation.GET, Operation.EXISTS], ids=["read", "asked to tell of its making"])
def test_a_record_that_is_no_longer_watched_when_the_servers_answer(url: str, until: Operation) -> None:
    """Nothing is left here of a watch that is given up while the record is looked at for the first time."""

    async def story(store: ZooKeeperMetadataStore, proxy: ReplyProxy) -> None:
        proxy.hold_at(until)
        watching = asyncio.ensure_future(store.watch(RECORD))
        await proxy.held()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        proxy.let_through()
        await settle(store)
        assert store._watches._by_node == {}
        watch = await store.watch(RECORD)
        await store.put(Put(RECORD, b"1", Expect.ABSENT))
        await wakes(watch)

    run_through_proxy(url, story)


@pytest.mark.parametrize("options", [MetadataOptions(empty_nodes_delay_ms=0)])
async def test_a_range_is_watched_while_nodes_above_it_come_and_go(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """The nodes above are created with the first record, and removed some time after the last one."""
    watch = await store.watch(TARGETS["range"])
    for number in range(3):
        key = Key(f"/watched/a/longer/way/{number}")
        waiting = await waiting_for(watch, store)
        await other.put(Put(key, b"", Expect.ABSENT))
        await waiting
        await sleeps(watch, store)
        waiting = await waiting_for(watch, store)
        await other.delete(key, Expect.ANY)
        await waiting
        # Let the empty nodes go.
        for _ in range(LEVELS_MAX):
            await other.get(RECORD)
            await other.put(Put(Key("/elsewhere"), b"", Expect.ANY))
            await settle(other)
        await sleeps(watch, store)


def test_a_store_that_is_closed_while_a_record_begins_to_be_watched(url: str) -> None:
    """The caller gets an error, instead of waiting for a reply that is no longer processed."""

    async def story(store: ZooKeeperMetadataStore, proxy: ReplyProxy) -> None:
        proxy.hold_at(Operation.GET)
        watching = asyncio.ensure_future(store.watch(RECORD))
        await proxy.held()
        closing = asyncio.ensure_future(store.close())
        with pytest.raises(Closed):
            await asyncio.wait_for(watching, WAIT_S)
        proxy.let_through()
        await closing

    run_through_proxy(url, story)
