"""The tree on a real server: the same answers as the memory store, cleanup, limits, and concurrent writers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, UnknownFormat, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import (
    Check,
    Delete,
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    Step,
    index_keys,
    paths,
)
from txnframework.model.ids import TxnID
from txnframework.testing import VirtualEnvironment
from txnframework_memory import MemorySpace
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore, open_metadata_store
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, Op, SetNode
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble
from txnframework_zookeeper.tree._layout import node_of

TXN = TxnID.parse(f"{0x124F80:032x}")
HEADER = paths.header_key(TXN)
OPERATIONS = paths.operations_prefix(TXN)
DELAY_MS = 1_000
OPTIONS = MetadataOptions(empty_nodes_delay_ms=DELAY_MS)
ALL = KeyRange("/", "0")

Open = Callable[..., AbstractAsyncContextManager[ZooKeeperMetadataStore]]


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def environment() -> VirtualEnvironment:
    """Time stands still unless a test lets it pass."""
    return VirtualEnvironment()


@pytest.fixture
def opened(url: str, environment: VirtualEnvironment) -> Open:
    """Return what opens a client of one store."""

    @asynccontextmanager
    async def open_store(options: MetadataOptions = OPTIONS) -> AsyncIterator[ZooKeeperMetadataStore]:
        store = await open_metadata_store(url, environment, options)
        try:
            yield store
        finally:
            await store.close()

    return open_store


async def everything(store: IMetadataStore, left: KeyRange | IndexRange | None, items_max: int) -> list[Record]:
    """Return every record of a range, page by page."""
    found: list[Record] = []
    while left is not None:
        scan = store.scan_index if isinstance(left, IndexRange) else store.scan
        page = await scan(left, items_max)  # type: ignore[operator]
        found += page.records
        left = page.resume
    return found


def in_order(records: list[Record]) -> list[Key]:
    """Return their keys; the order of records with one path in several partitions is the store's."""
    keys = (record.key for record in records)
    runs = (sorted(run, key=lambda key: key.partition) for _, run in groupby(keys, lambda key: key.path))
    return [key for run in runs for key in run]


async def nodes_below(store: ZooKeeperMetadataStore, node: str) -> list[str]:
    """Return every node below one."""
    found: list[str] = []
    for name in sorted(await store.zookeeper.children(node) or ()):
        child = f"{node.rstrip('/')}/{name}"
        found += [child, *await nodes_below(store, child)]
    return found


def counted(store: ZooKeeperMetadataStore) -> list[list[Op]]:
    """Return a list that grows with each multi that the store sends."""
    sent: list[list[Op]] = []
    multi = store.zookeeper.multi

    async def listen(ops: list[Op]) -> object:
        sent.append(list(ops))
        return await multi(ops)

    store.zookeeper.multi = listen  # type: ignore[assignment,method-assign]
    return sent


def by_kind(*kinds: str) -> tuple[IndexEntry, ...]:
    """Return index entries."""
    return tuple(IndexEntry("kinds", index_keys.encode(kind)) for kind in kinds)


async def begin(store: IMetadataStore) -> int:
    """Put a header."""
    return await store.put(Put(HEADER, b"OPEN", Expect.ABSENT, by_kind("open")))


async def operate(store: ZooKeeperMetadataStore, version: int) -> Record:
    """Put an operation on the condition of the header."""
    step = Step((Check(HEADER, version),), (PutSequential(OPERATIONS, b"op", by_kind("writes")),))
    return (await store.apply(step)).records[0]


@pytest.mark.parametrize("seed", range(12))
@in_a_loop
async def test_answers_as_the_memory_store(seed: int, opened: Open) -> None:
    """Random writes have the same results as in the memory store, in every order and page size."""
    source = random.Random(seed)
    # One path in two partitions, paths that begin as others do, index keys that do as well.
    keys = [
        Key(f"/{name}", partition)
        for name in ("a", "a/", "a/b", "a-b", "ab", "abc", "abcd", "abc/d", "abc-d", "é/ü", f"txn-op/{TXN}/{3:020d}")
        for partition in ("", "p")
    ]
    index_pool = [b"", b"k", b"k\x00", b"k1", index_keys.encode("s", 5), index_keys.encode("s"), index_keys.encode(300)]
    versions: dict[Key, tuple[int, int]] = {}
    small = MetadataOptions(index_entries_together_max=2, nodes_known_max=5, number_block_size=3)
    async with opened(small) as store, opened(small) as other:
        memory = await MemorySpace(SystemEnvironment()).open_metadata()
        for _ in range(150):
            key = source.choice(keys)
            known = versions.get(key)
            indexes = tuple(IndexEntry("i", one) for one in source.sample(index_pool, source.randrange(3)))
            expected = source.choice(["absent", "any", "version"] if known else ["absent", "any"])
            removes = source.random() < 0.4
            results: list[object] = []
            for number, one in enumerate((memory, source.choice((store, other)))):
                wanted = known[number] if known and expected == "version" else Expect[expected.upper()] \
                    if expected != "version" else 0  # fmt: skip
                try:
                    if removes:
                        await one.delete(key, wanted)
                        results.append(None)
                    else:
                        results.append(
                            await one.put(Put(key, source.randbytes(3) if number < 0 else b"v", wanted, indexes))
                        )
                except VersionMismatch as error:
                    results.append((error.key, error.actual is None))
            first, second = results
            assert type(first) is type(second)
            if isinstance(first, int) and isinstance(second, int):
                versions[key] = (first, second)
            else:
                assert first == second
        for items_max in (1, 3, 100):
            for asked in (ALL, KeyRange("/a", "/ab"), KeyRange("/a", "/b", "p"), KeyRange("/abc", "/abc\x7f"),
                          IndexRange("i", b"", b"\xff"), IndexRange("i", b"k", b"k1"),
                          index_keys.prefix_range("i", "s")):  # fmt: skip
                wanted_records = await everything(memory, asked, items_max)
                found = await everything(store, asked, items_max)
                assert in_order(found) == in_order(wanted_records)


@in_a_loop
async def test_a_transaction_costs_a_multi_for_each_step(opened: Open) -> None:
    """Begin, first write and end are one multi each and read nothing once the nodes above are known."""
    async with opened() as store:
        for number in range(2):
            header = paths.header_key(TxnID.parse(f"{number + 5:032x}"))
            operations = Key(header.path.replace("/txn/", "/txn-op/"), header.partition)
            sent = counted(store)
            version = await store.put(Put(header, b"OPEN", Expect.ABSENT, by_kind("open")))
            write = PutSequential(operations, b"op", by_kind("writes"))
            (operation,) = (await store.apply(Step((Check(header, version),), (write,)))).records
            version = await store.put(Put(header, b"COMMITTED", version, by_kind("ended")))
            await store.delete(operation.key, operation.version)
            await store.delete(header, version)
            assert len(sent) == 5
        # The transaction's own node went with its last operation.
        assert len(sent[3]) == 3
        assert await store.zookeeper.get(node_of(operation.key).rpartition("/")[0]) is None


@in_a_loop
async def test_a_range_is_listed_in_one_round_trip_the_way_it_was_before(opened: Open) -> None:
    """Nodes of the last listing are listed together; nodes that were added or removed since are still found."""
    async with opened() as store, opened() as other:
        writes = index_keys.prefix_range("kinds", "writes")
        trips = 0
        send = store.zookeeper._send_reads

        def count() -> None:
            nonlocal trips
            trips += 1
            send()

        store.zookeeper._send_reads = count  # type: ignore[method-assign]

        async def scanned() -> tuple[int, list[Key]]:
            before = trips
            found = (await store.scan_index(writes, 10)).records
            return trips - before, [record.key for record in found]

        version = await begin(other)
        first = (await operate(other, version)).key
        far, found = await scanned()
        assert found == [first]
        assert await scanned() == (2, [first])
        assert far > 2
        # In a node beside the one that was on the way, and nothing below that one any more.
        elsewhere = Key(f"/txn-op/{0x9124F80:032x}/{1:020d}", str(TXN))
        await other.put(Put(elsewhere, b"op", Expect.ABSENT, by_kind("writes")))
        assert (await scanned())[1] == [first, elsewhere]
        await other.delete(first, Expect.ANY)
        assert (await scanned())[1] == [elsewhere]
        assert await scanned() == (2, [elsewhere])


@in_a_loop
async def test_what_is_empty_goes(opened: Open, environment: VirtualEnvironment) -> None:
    """Empty nodes are removed after a while, and nothing remains of a transaction."""
    async with opened() as store:
        await store.put(Put(Key("/kept"), b"", Expect.ABSENT))
        before = await nodes_below(store, "/")
        operation = await operate(store, await begin(store))
        await store.delete(operation.key, Expect.ANY)
        await store.delete(HEADER, Expect.ANY)
        # One level at a time.
        for _ in range(12):
            await environment.advance(DELAY_MS)
            await store.delete(Key("/absent"), Expect.ANY)
            while store._empty_nodes._task is not None:
                await asyncio.wait([store._empty_nodes._task])
        assert await nodes_below(store, "/") == before


@in_a_loop
async def test_what_another_process_left_empty_goes(opened: Open, environment: VirtualEnvironment) -> None:
    """A node that a dead process left empty is removed by the next listing."""
    async with opened() as store:
        operation = await operate(store, await begin(store))
        await store.delete(operation.key, Expect.ANY)
    async with opened() as other:
        for _ in range(12):
            assert await everything(other, KeyRange("/txn-op/", "/txn-op0"), 10) == []
            await environment.advance(DELAY_MS)
            other._empty_nodes.start_due()
            while other._empty_nodes._task is not None:
                await asyncio.wait([other._empty_nodes._task])
        assert not [node for node in await nodes_below(other, "/records") if "txn-op" in node]


@in_a_loop
async def test_a_node_that_went_is_made_again(opened: Open, environment: VirtualEnvironment) -> None:
    """A client recreates a known node that another process removed as empty, and loses nothing."""
    async with opened() as store, opened() as other:
        operation = await operate(store, await begin(store))
        record = await other.get(operation.key)
        assert record is not None
        await other.delete(record.key, record.version)
        await other.delete(HEADER, Expect.ANY)
        for _ in range(12):
            await environment.advance(DELAY_MS)
            other._empty_nodes.start_due()
            while other._empty_nodes._task is not None:
                await asyncio.wait([other._empty_nodes._task])
        await operate(store, await begin(store))
        assert len(await everything(other, ALL, 10)) == 2


@in_a_loop
async def test_adding_and_removing_may_meet(opened: Open) -> None:
    """Adding below a node while others remove it as empty is not refused and loses nothing."""

    async def come_and_go(store: ZooKeeperMetadataStore, name: str) -> None:
        for number in range(25):
            key = Key(f"/deep/down/{name}/{number}")
            version = await store.put(Put(key, b"", Expect.ABSENT, by_kind(name)))
            assert [record.key for record in await everything(store, index_keys.prefix_range("kinds", name), 5)] == [
                key
            ]
            await store.delete(key, version)
        await store.put(Put(Key(f"/deep/down/{name}/last"), b"", Expect.ABSENT))

    at_once = MetadataOptions(empty_nodes_delay_ms=0)
    async with opened(at_once) as store, opened(at_once) as other:
        await asyncio.gather(*(come_and_go(one, f"n{at}") for at, one in enumerate((store, other, store, other))))
        assert len(await everything(store, ALL, 10)) == 4


@in_a_loop
async def test_two_clients_on_one_prefix_go_on(opened: Open) -> None:
    """Concurrent operations of one transaction from two clients all get different numbers."""
    async with opened() as store, opened() as other:
        version = await begin(store)
        await other.get(HEADER)
        written = await asyncio.gather(*(operate(one, version) for one in (store, other) * 150))
        assert len({record.key for record in written}) == 300
        assert len(await everything(store, paths.operations_range(TXN), 40)) == 300
        # Those behind the first hundred of each client are spread over nodes of their own.
        names = await store.zookeeper.children(node_of(written[0].key).rpartition("/")[0])
        assert names is not None
        assert len(names) < 210


@in_a_loop
async def test_a_number_that_is_taken_is_passed_over(opened: Open) -> None:
    """Records that another process created under the next numbers by their keys remain, and the number after
    them is used.
    """
    async with opened() as store:
        prefix = Key("/op/x", "x")
        for number in range(3):
            await store.put(Put(Key(f"/op/x/{number:020d}", "x"), b"taken", Expect.ABSENT))
        key = (await store.apply(Step(puts=(PutSequential(prefix, b"new"),)))).records[0].key
        found = await everything(store, KeyRange("/op/x/", "/op/x0"), 10)
        assert [record.value for record in found] == [b"taken", b"taken", b"taken", b"new"]
        assert found[3].key == key


@in_a_loop
async def test_entries_of_one_place_go_deeper_when_there_are_many(opened: Open) -> None:
    """Beyond a limit, a client puts further entries of a node below child nodes."""
    async with opened(MetadataOptions(index_entries_together_max=10)) as store:
        for number in range(30):
            one = f"{number:032x}"
            entry = IndexEntry("by-time", index_keys.encode(1_763_774_857_123, one))
            await store.put(Put(paths.header_key(TxnID.parse(one)), b"", Expect.ABSENT, (entry,)))
        listings: dict[str, int] = {}
        for node in await nodes_below(store, "/indexes"):
            listings[node.rpartition("/")[0]] = listings.get(node.rpartition("/")[0], 0) + 1
        assert max(listings.values()) <= 11
        found = await everything(store, IndexRange("by-time", b"", b"\xff"), 7)
        assert [record.key.partition for record in found] == [f"{number:032x}" for number in range(30)]


@in_a_loop
async def test_a_record_made_again_by_another_client_keeps_its_entries(opened: Open) -> None:
    """Outdated memory of an earlier life of the record does not corrupt its index entries."""
    key = Key("/a")
    async with opened() as store, opened() as other:
        version = await store.put(Put(key, b"one", Expect.ABSENT, by_kind("x")))
        await other.delete(key, Expect.ANY)
        await other.put(Put(key, b"two", Expect.ABSENT, by_kind("y")))
        with pytest.raises(VersionMismatch):
            await store.put(Put(key, b"three", version, by_kind("x", "z")))
        await store.put(Put(key, b"four", Expect.ANY, by_kind("z")))
        found = await everything(other, index_keys.prefix_range("kinds"), 10)
        assert [record.value for record in found] == [b"four"]
        assert len([node for node in await nodes_below(store, "/indexes") if "=" in node]) == 1


@in_a_loop
async def test_an_entry_that_an_earlier_life_did_not_have_is_taken_over(opened: Open) -> None:
    """Replacing or removing a record by its version of an earlier life does not prevent others from adding its entries
    again.

    Both lives were written equally often, so ZooKeeper cannot tell them apart, and an entry of the later one stays.
    """
    key = Key("/a")
    for removes in (False, True):
        async with opened() as store, opened() as other:
            version = await store.put(Put(key, b"one", Expect.ABSENT, by_kind("x")))
            await other.delete(key, Expect.ANY)
            await other.put(Put(key, b"two", Expect.ABSENT, by_kind("x", "y")))
            if removes:
                await store.delete(key, version)
            else:
                await store.put(Put(key, b"three", version, by_kind("x")))
            assert not await everything(store, index_keys.prefix_range("kinds", "y"), 10)
            await other.put(Put(key, b"four", Expect.ANY, by_kind("x", "y")))
            found = await everything(store, index_keys.prefix_range("kinds"), 10)
            assert [record.value for record in found] == [b"four", b"four"]
            await other.delete(key, Expect.ANY)
            assert not [node for node in await nodes_below(store, "/indexes") if "=" in node]


@in_a_loop
async def test_whatever_stands_is_looked_at_before_it_is_replaced_or_removed(opened: Open) -> None:
    """Outdated memory of an earlier life leaves no entry of the later one behind."""
    key = Key("/a")
    for removes in (False, True):
        async with opened() as store, opened() as other:
            await store.put(Put(key, b"one", Expect.ABSENT, by_kind("x")))
            await other.delete(key, Expect.ANY)
            await other.put(Put(key, b"two", Expect.ABSENT, by_kind("x", "y")))
            if not removes:
                await store.put(Put(key, b"three", Expect.ANY, by_kind("x")))
                assert len([node for node in await nodes_below(store, "/indexes") if "=" in node]) == 1
            await store.delete(key, Expect.ANY)
            assert not [node for node in await nodes_below(store, "/indexes") if "=" in node]


@in_a_loop
async def test_what_does_not_fit_is_refused(opened: Open) -> None:
    """More records at once than a request takes are refused in a sentence that names the limit."""
    async with opened() as store:
        with pytest.raises(InvalidInput, match=r"1048575 bytes.*fewer at once"):
            await store.apply(Step(puts=tuple(Put(Key(f"/{n}", "p"), b"", Expect.ABSENT) for n in range(6_000))))
        assert await everything(store, ALL, 10) == []


@in_a_loop
async def test_what_fits_only_without_the_chroot_is_refused(url: str) -> None:
    """Every path of a request includes the chroot; the client refuses it before the server disconnects."""
    store = await open_metadata_store(f"{url}/{'/'.join(['deep' * 25] * 4)}", SystemEnvironment(), OPTIONS)
    try:
        puts = tuple(Put(Key(f"/p/{number}", "p"), b"", Expect.ABSENT) for number in range(2_500))
        with pytest.raises(InvalidInput, match="fewer at once"):
            await store.apply(Step(puts=puts))
    finally:
        await store.close()


@in_a_loop
async def test_a_batch_asks_for_absence_until_it_is_applied(opened: Open) -> None:
    """A check of an absent record below nodes that are not there leaves no record, and is refused by one that came."""
    async with opened() as store, opened() as other:
        check, put = Check(Key("/deep/x", "p"), Expect.ABSENT), Put(Key("/b", "p"), b"", Expect.ANY)
        await store.apply(Step((check,), (put,)))
        assert [record.key.path for record in await everything(store, ALL, 10)] == ["/b"]
        await other.put(Put(Key("/deep/x", "p"), b"", Expect.ABSENT))
        with pytest.raises(VersionMismatch) as caught:
            await store.apply(Step((check,), (put,), (Delete(Key("/c", "p"), Expect.ANY),)))
        assert caught.value.key == check.key


@in_a_loop
async def test_a_later_format_is_refused(opened: Open) -> None:
    """A store, a record and a counter in a format that this release does not know are refused, by name."""
    async with opened() as store:
        await store.put(Put(Key("/a"), b"", Expect.ABSENT))
        await store.zookeeper.multi([SetNode(node_of(Key("/a")), b'[3,null,[],"more"]\nvalue')])
        with pytest.raises(UnknownFormat, match="record /a has format version 3"):
            await store.get(Key("/a"))
        await store.zookeeper.multi([SetNode("/numbers", b"[2,5]")])
        with pytest.raises(UnknownFormat, match="/numbers"):
            await store.apply(Step(puts=(PutSequential(Key("/op"), b""),)))
        await store.zookeeper.multi([SetNode("/store", b'{"format":2,"identity":"x"}')])
    with pytest.raises(UnknownFormat, match="the store has format version 2"):
        async with opened():
            pass


@in_a_loop
async def test_a_chroot_with_something_else_is_refused(opened: Open, url: str) -> None:
    """A chroot with nodes of another program is unchanged; a chroot below it is accepted."""
    async with opened() as store:
        for names in (["/else", "/else/brokers", "/else/brokers/ids"], ["/alike", "/alike/records"]):
            await store.zookeeper.multi([CreateNode(path) for path in names])
            before = await store.zookeeper.children(names[0])
            with pytest.raises(
                InvalidInput, match=f"{names[0]} contains nodes of another program; name an unused chroot"
            ):
                await open_metadata_store(url + names[0], SystemEnvironment(), OPTIONS)
            assert await store.zookeeper.children(names[0]) == before
            await (await open_metadata_store(f"{url}{names[0]}/txn", SystemEnvironment(), OPTIONS)).close()


def test_the_top_of_the_servers_is_taken_unless_another_program_has_something_there(tmp_path: Path) -> None:
    """ZooKeeper's own node does not count as another program's."""

    async def main(url: str) -> None:
        await (await open_metadata_store(url, SystemEnvironment(), OPTIONS)).close()
        store = await open_metadata_store(url, SystemEnvironment(), OPTIONS)
        made = [CreateNode("/kafka")]
        made += [DeleteNode(f"/{name}") for name in await store.zookeeper.children("/") or () if name != "zookeeper"]
        await store.zookeeper.multi(made)
        await store.close()
        with pytest.raises(InvalidInput, match="name an unused chroot"):
            await open_metadata_store(url, SystemEnvironment(), OPTIONS)

    with Ensemble(tmp_path) as server:
        asyncio.run(main(f"zookeeper://{server.hosts}"))


@in_a_loop
async def test_all_who_open_a_new_chroot_at_once_have_one_store(url: str) -> None:
    """The nodes of a concurrent first opening are not mistaken for another program's."""
    stores = await asyncio.gather(*(open_metadata_store(f"{url}/one", SystemEnvironment(), OPTIONS) for _ in range(8)))
    assert len({store.identity for store in stores}) == 1
    for store in stores:
        await store.close()


@in_a_loop
async def test_text_that_cannot_be_stored_is_named(opened: Open) -> None:
    """Half of a surrogate pair has no UTF-8 form: using it in a name raises one sentence with its position."""
    half, entry = "a\ud800", IndexEntry("a\ud800", b"")
    async with opened() as store:
        for what, do in (
            ("the key '/a", lambda: store.get(Key(f"/{half}"))),
            ("the key '/a", lambda: store.put(Put(Key(f"/{half}"), b"", Expect.ANY))),
            ("the partition '/a", lambda: store.apply(Step(puts=(PutSequential(Key(f"/{half}"), b""),)))),
            ("the partition 'a", lambda: store.get(Key("/a", half))),
            ("the partition 'a", lambda: store.put(Put(Key("/a", half), b"", Expect.ANY))),
            ("the index 'a", lambda: store.put(Put(Key("/a"), b"", Expect.ANY, (entry,)))),
            ("the index 'a", lambda: store.scan_index(IndexRange(half, b"", b"a"), 1)),
            ("the index 'a", lambda: store.watch(IndexRange(half, b"", b"a"))),
            ("keys from '/a", lambda: store.scan(KeyRange(f"/{half}/", f"/{half}/b"), 1)),
            ("the lease 'a", lambda: store.acquire_lease(half, "holder")),
            ("holder 'a", lambda: store.acquire_lease("name", half)),
        ):
            with pytest.raises(InvalidInput, match=rf"{what}\\ud800[^ ]* has no UTF-8 form: ") as refused:
                await do()
            assert str(refused.value).isascii()
        assert (await store.scan(ALL, 1)).records == ()
