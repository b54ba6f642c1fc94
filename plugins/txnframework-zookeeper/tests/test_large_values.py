"""Values larger than a request are written in chunks: atomically, read unchanged, and without leftovers."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from txnframework.environment import SystemEnvironment
from txnframework.errors import CorruptRecord, InvalidInput, UnknownFormat, VersionMismatch
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
)
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore, open_metadata_store
from txnframework_zookeeper._options import VALUES_TOGETHER_BYTES_MAX, MetadataOptions
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, Multi, SetNode
from txnframework_zookeeper.testing.servers.zookeeper import Setup
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble
from txnframework_zookeeper.tree._layout import node_of
from txnframework_zookeeper.tree._records import CHUNKS, select_chunked

A, B, C, OPERATIONS = (Key(f"/p/{name}", "p") for name in ("a", "b", "c", "op"))
ALL = KeyRange("/", "0")
ENTRIES = (IndexEntry("kinds", index_keys.encode("large")),)
INDEX = index_keys.prefix_range("kinds", "large")
LARGE = 1_500_000
IN_CHUNKS = 12
"""Of how many chunks such a value is."""
PATIENCE_S = 60


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A server with memory for its last 500 changes, large as they are here."""
    with Ensemble(tmp_path_factory.mktemp("roomy"), setup=Setup(java_options=("-Xmx768m",))) as ensemble:
        yield ensemble


@pytest.fixture
def url(roomy: Ensemble) -> str:
    """A place that is not there yet."""
    return f"zookeeper://{roomy.hosts}/tests/{secrets.token_hex(8)}"


def value(size: int = LARGE) -> bytes:
    """Return a value that is like no other."""
    return secrets.token_bytes(16) + bytes(size - 16)


async def opened(stack: AsyncExitStack, url: str, **options: Any) -> ZooKeeperMetadataStore:
    """Open a client until the end of the story."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions(**options))
    stack.push_async_callback(store.close)
    return store


async def everything(store: ZooKeeperMetadataStore, left: Any = ALL, items_max: int = 100) -> list[Record]:
    """Return every record of a range, page by page."""
    found: list[Record] = []
    while left is not None:
        page = await (store.scan_index if isinstance(left, IndexRange) else store.scan)(left, items_max)
        found += page.records
        left = page.resume
    return found


async def nodes_below(store: ZooKeeperMetadataStore, node: str) -> list[str]:
    """Return every node below one."""
    found: list[str] = []
    for name in sorted(await store.zookeeper.children(node) or ()):
        found += [f"{node}/{name}", *await nodes_below(store, f"{node}/{name}")]
    return found


async def chunks_left(store: ZooKeeperMetadataStore) -> list[str]:
    """Return the nodes of all chunks, once the client is done with removing."""
    staging = store._writer._chunk_writer
    while staging._task is not None:
        await asyncio.wait([staging._task])
    return [node for node in await nodes_below(store, CHUNKS) if node.rpartition("/")[2].isdigit()]


class Broken(Exception):
    """What a process that dies sees."""


class Dying:
    """Lets a client die, or its connection be lost, around a multi: from then on it sends nothing."""

    def __init__(self, store: ZooKeeperMetadataStore) -> None:
        self._store = store
        self._submit = store.zookeeper.session.submit

    def at(self, is_it: Callable[[Multi], bool], *, is_applied: bool, is_dead: bool = True) -> None:
        """Lose the first multi for which this is so, or its reply; with ``is_dead`` everything that comes then."""

        def submit(request: object, reply: Any, session_id: int | None = None) -> None:
            if not isinstance(request, Multi) or not is_it(request):
                self._submit(request, reply, session_id)
                return
            session: Any = self._store.zookeeper.session
            session.submit = self._lost if is_dead else self._submit
            self._losing = asyncio.ensure_future(self._lose(request, reply, session_id, is_applied))

        self._store.zookeeper.session.submit = submit  # type: ignore[method-assign,assignment]

    async def _lose(self, request: Multi, reply: Any, session_id: int | None, is_applied: bool) -> None:
        if is_applied:
            done = type(reply)(self._store.zookeeper.session.loop)
            self._submit(request, done, session_id)
            await done.answer
        reply.take(ConnectionLoss())

    def _lost(self, _request: object, reply: Any, _session_id: int | None = None) -> None:
        reply.take(Broken())


def writes_head(multi: Multi) -> bool:
    """Whether a multi is the one that names chunks."""
    return any(isinstance(op, SetNode) and op.data == b"named" for op in multi.ops)


def makes_chunk(number: int) -> Callable[[Multi], bool]:
    """Return whether a multi makes the chunk of this number."""
    return lambda multi: any(isinstance(op, CreateNode) and op.path.endswith(f"/{number:05d}") for op in multi.ops)


def removes_chunks(multi: Multi) -> bool:
    """Whether a multi removes chunks."""
    return any(isinstance(op, DeleteNode) and op.path.startswith(CHUNKS) for op in multi.ops)


async def test_large_values_are_records_as_any_other(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """Large values are created, replaced, batched, numbered, read, scanned and removed like small ones."""
    one, two, three, four = value(), value(), value(5_000_000), value()
    version = await store.put(Put(A, one, Expect.ABSENT, ENTRIES))
    assert await other.get(A) == Record(A, one, version)
    assert len(await chunks_left(store)) == IN_CHUNKS
    version = await other.put(Put(A, two, version, ENTRIES))
    assert await store.get(A) == Record(A, two, version)
    key = (await store.apply(Step(puts=(PutSequential(OPERATIONS, four, ENTRIES),)))).records[0].key
    puts = (Put(B, three, Expect.ABSENT, ENTRIES), Put(C, b"small", Expect.ANY), PutSequential(OPERATIONS, one))
    written = (await store.apply(Step((Check(A, version),), puts))).records
    values = [two, three, b"small", four, one]
    assert [record.value for record in await everything(other)] == values
    assert {record.value for record in await everything(other, INDEX)} == {two, three, four}
    await store.put(Put(A, b"small now", version))
    await other.put(Put(C, value(), written[1].version))
    await other.apply(Step(deletes=(Delete(B, written[0].version), Delete(C, Expect.ANY))))
    await store.delete(key, Expect.ANY)
    assert [record.value for record in await everything(store)] == [b"small now", one]
    for client in (store, other):
        left = await chunks_left(client)
    assert len(left) == IN_CHUNKS
    await other.delete(written[2].key, written[2].version)
    assert await chunks_left(other) == []
    assert await nodes_below(store, "/lives") == []


async def test_a_write_that_is_refused_leaves_nothing(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """A large value with a wrong version changes nothing, and its chunks are removed."""
    first = value()
    version = await store.put(Put(A, first, Expect.ABSENT))
    for expected in (version - 1, Expect.ABSENT):
        with pytest.raises(VersionMismatch):
            await other.put(Put(A, value(), expected))
    with pytest.raises(VersionMismatch):
        await other.apply(Step((Check(B, 1),), (Put(C, value(), Expect.ANY), Put(A, value(), version))))
    assert len(await chunks_left(other)) == IN_CHUNKS
    assert await everything(store) == [Record(A, first, version)]
    assert await nodes_below(store, "/lives") == []


async def test_a_batch_of_many_values_that_are_large_together(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """If the batch does not fit one request, the largest values are written in chunks; one request names all."""
    puts = tuple(Put(Key(f"/{n:02d}", "p"), value(100_000), Expect.ABSENT) for n in range(40))
    await store.apply(Step(puts=puts))
    assert [record.value for record in await everything(other)] == [put.value for put in puts]
    assert len(await chunks_left(store)) == 33


@pytest.mark.parametrize("one_max", [1, 100_000, VALUES_TOGETHER_BYTES_MAX])
def test_what_is_not_in_chunks_fits_a_request(one_max: int) -> None:
    """Values outside of chunks fit a request, each and together, for any sizes."""
    source = random.Random(one_max)
    for _ in range(200):
        sizes = [source.choice((0, 10, 99_000, 100_001, 700_000, 2_000_000)) for _ in range(source.randrange(30))]
        others = [size for number, size in enumerate(sizes) if number not in select_chunked(sizes, one_max, 786_432)]
        assert sum(others) <= 786_432
        assert max(others, default=0) <= one_max
        assert select_chunked([size for size in sizes if size <= 10], 10, 786_432) == set()


@pytest.mark.parametrize("options", [MetadataOptions(value_bytes_max=2000000)])
async def test_a_bound_is_kept(store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore) -> None:
    """A value above the configured limit is refused with one sentence and the remedy; nothing is written."""
    await store.put(Put(A, value(2_000_000), Expect.ABSENT))
    with pytest.raises(InvalidInput, match=r"/p/b is larger than metadata.options.value_bytes_max \(2000000\)"):
        await store.put(Put(B, value(2_000_001), Expect.ABSENT))
    with pytest.raises(InvalidInput, match="/p/op is larger"):
        await store.apply(Step(puts=(PutSequential(OPERATIONS, value(2_000_001)),)))
    assert len(await everything(other)) == 1


@pytest.mark.parametrize("options", [MetadataOptions(page_bytes_max=1000000)])
async def test_a_page_ends_with_so_many_bytes(store: ZooKeeperMetadataStore) -> None:
    """A page of large values has fewer records, at least one; all pages together are complete and in order."""
    keys = [Key(f"/{number}", partition) for number in range(4) for partition in ("", "p")]
    for key in keys:
        await store.put(Put(key, value(600_000), Expect.ABSENT, ENTRIES))
    for target, size in ((ALL, 2), (INDEX, 2)):
        page = await (store.scan if target is ALL else store.scan_index)(target, 100)  # type: ignore[operator]
        assert len(page.records) == size
        found = await everything(store, target)
        assert [record.key.path for record in found] == [key.path for key in keys]
        assert {record.key for record in found} == {*keys}


@pytest.mark.parametrize("is_applied", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize(
    "is_it", [makes_chunk(0), makes_chunk(IN_CHUNKS - 1), writes_head], ids=["first", "last", "head"]
)
async def test_a_lost_connection_loses_and_doubles_nothing(
    is_it: Callable[[Multi], bool], is_applied: bool, store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """If any request or its reply is lost, the write is done once."""
    await store.put(Put(A, value(), Expect.ABSENT, ENTRIES))
    wanted, operation = value(), value()
    Dying(store).at(is_it, is_applied=is_applied, is_dead=False)
    version = await store.put(Put(A, wanted, Expect.ANY, ENTRIES))
    Dying(store).at(is_it, is_applied=is_applied, is_dead=False)
    key = (await store.apply(Step(puts=(PutSequential(OPERATIONS, operation),)))).records[0].key
    found = await everything(other)
    assert [(record.key, record.value) for record in found] == [(A, wanted), (key, operation)]
    assert found[0].version == version
    assert len(await chunks_left(store)) == 2 * IN_CHUNKS
    assert await nodes_below(other, "/lives") == []


@pytest.mark.parametrize("is_next_writer", [True, False], ids=["writer", "opener"])
@pytest.mark.parametrize(
    ("is_it", "is_applied", "is_new"),
    [
        (makes_chunk(3), True, False),
        (writes_head, False, False),
        (writes_head, True, True),
        (removes_chunks, False, True),
    ],
    ids=["staging", "before head", "behind head", "before removal"],
)
async def test_what_dies_with_its_process_is_removed(
    url: str,
    is_it: Callable[[Multi], bool],
    is_applied: bool,
    is_new: bool,
    is_next_writer: bool,
    store: ZooKeeperMetadataStore,
    other: ZooKeeperMetadataStore,
) -> None:
    """The record is entirely old or new, and the next writer removes leftovers."""
    old, new = value(), value()
    await store.put(Put(A, old, Expect.ABSENT))
    Dying(store).at(is_it, is_applied=is_applied)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await store.put(Put(A, new, Expect.ANY))
    except Exception:
        pass
    while is_it is removes_chunks and store._writer._chunk_writer._task is not None:
        await asyncio.wait([store._writer._chunk_writer._task])
    found = await everything(other)
    assert [record.value for record in found] == [new if is_new else old]
    assert len(await nodes_below(other, CHUNKS)) > IN_CHUNKS + 3
    # Its session ends: a node of its own was what told others that it lives.
    del store.zookeeper.session.submit
    store._writer._chunk_writer._is_closed = True
    await store.close()
    async with AsyncExitStack() as stack:
        if is_next_writer:
            await other.put(Put(A, new, Expect.ANY))
        else:
            other = await opened(stack, url)
            await other.delete(B, Expect.ANY)
        assert len(await chunks_left(other)) == IN_CHUNKS
        assert await everything(other) == [await other.get(A)]


async def test_one_that_lives_is_not_disturbed(store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore) -> None:
    """Two processes write one record: neither removes the staged parts of the other, and one of them wins."""
    await store.put(Put(A, b"", Expect.ABSENT))
    versions = set()
    for _ in range(4):
        current = await store.get(A)
        assert current is not None
        values = value(), value()
        results = await asyncio.gather(
            *(one.put(Put(A, wanted, current.version)) for one, wanted in zip((store, other), values, strict=True)),
            return_exceptions=True,
        )
        (version,) = [result for result in results if isinstance(result, int)]
        (mismatch,) = [result for result in results if not isinstance(result, int)]
        assert isinstance(mismatch, VersionMismatch)
        assert await store.get(A) == Record(A, values[results.index(version)], version)
        versions.add(version)
    assert len(versions) == 4
    await chunks_left(store)
    assert len(await chunks_left(other)) == IN_CHUNKS


async def test_what_was_taken_from_a_writer_is_written_again(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """A writer whose session ended finds its chunks removed, and still writes the whole value."""
    multi = store.zookeeper.multi
    wanted = value()

    async def too_late(ops: Any, session_id: int | None = None) -> Any:
        if writes_head(Multi(ops, "", b"")):
            store.zookeeper.multi = multi  # type: ignore[method-assign]
            (life,) = await nodes_below(other, "/lives")
            await other.zookeeper.multi([DeleteNode(life)])
            await other.put(Put(A, value(), Expect.ABSENT))
            await other.delete(A, Expect.ANY)
            assert await chunks_left(other) == []
        return await multi(ops, session_id)

    store.zookeeper.multi = too_late  # type: ignore[method-assign]
    version = await store.put(Put(A, wanted, Expect.ANY))
    assert await other.get(A) == Record(A, wanted, version)


async def test_what_is_replaced_while_it_is_read_is_read_again(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore
) -> None:
    """If the chunks of a read value are removed, the reader reads the current value, or none."""
    get = other.zookeeper.get
    after: list[Callable[[], Awaitable[object]]] = []

    async def slow(path: str, is_current: bool = True) -> Any:
        if path.startswith(CHUNKS) and after:
            await after.pop()()
            await chunks_left(store)
        return await get(path, is_current)

    await store.put(Put(A, value(), Expect.ABSENT, ENTRIES))
    other.zookeeper.get = slow  # type: ignore[method-assign]
    for wanted in (value(), b"small", value()):
        for read in (lambda: other.get(A), lambda: everything(other), lambda: everything(other, INDEX)):
            await store.put(Put(A, value(), Expect.ANY, ENTRIES))
            after.append(lambda wanted=wanted: store.put(Put(A, wanted, Expect.ANY, ENTRIES)))  # type: ignore[misc]
            found = await read()
            record = found[0] if isinstance(found, list) else found
            assert record is not None
            assert record.value == wanted
    after.append(lambda: store.put(Put(A, value(), Expect.ANY)))
    assert await everything(other, INDEX) == []
    after.append(lambda: store.delete(A, Expect.ANY))
    assert await other.get(A) is None


async def test_damage_is_told(store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore) -> None:
    """Missing or shortened chunks, and later formats, are reported as damage or as an unknown format."""
    await store.put(Put(A, value(), Expect.ABSENT))
    chunks = await chunks_left(store)
    await store.zookeeper.multi([SetNode(chunks[0], b"short")])
    with pytest.raises(CorruptRecord, match="/p/a is damaged at its value"):
        await other.get(A)
    await store.zookeeper.multi([DeleteNode(chunks[1])])
    with pytest.raises(CorruptRecord, match="a chunk below"):
        await other.get(A)
    await store.zookeeper.multi([SetNode(node_of(A), b'[3,null,[],"token",{"more":1}]\n')])
    with pytest.raises(UnknownFormat, match="format version 3"):
        await other.get(A)
