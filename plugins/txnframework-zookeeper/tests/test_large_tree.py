"""
No listing grows with the number of transactions.

In the ordinary run with few transactions. ``pytest -s -m slow`` builds a tree with 200,000 open ones
(``TXN_LARGE_TREE`` is another number) and five times as many finished ones, which takes a server with 6 GB of memory
and up to half an hour, and shows what was measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import IMetadataStore
from txnframework.model import (
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    index_keys,
    paths,
)
from txnframework.model.ids import TxnID
from txnframework_zookeeper._metadata_store import open_metadata_store
from txnframework_zookeeper._nodes import NodeCache
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper._plans import Planner, StepPart, part_of, sequential_part
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, Op, SetNode
from txnframework_zookeeper.testing.servers.zookeeper import Setup
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble
from txnframework_zookeeper.tree._layout import RECORDS

NOW_MS = 1_763_774_857_000
SEGMENTS = 10
REQUEST_BYTES = 200_000
REQUESTS_TOGETHER = 4
LISTED_TOGETHER = 200


@dataclass(frozen=True)
class Size:
    """How many transactions there are, and how large a listing may be."""

    open: int
    finished: int
    java_options: tuple[str, ...] = ()
    listing_bytes_max: int = 300_000
    listing_names_max: int = 6_500


LARGE = int(os.environ.get("TXN_LARGE_TREE", "200000"))
SIZES = [
    pytest.param(Size(200, 1_000), id="few"),
    pytest.param(
        Size(LARGE, 5 * LARGE, ("-Xmx6g", "-XX:TieredStopAtLevel=4")), id="as asked for", marks=pytest.mark.slow
    ),
]


def segment(number: int) -> str:
    """Return the name of one of the segments."""
    return f"segment://public/default/orders/0000-ffff-{number % SEGMENTS}"


def transactions(size: Size) -> Iterator[list[StepPart]]:
    """Return what is put for each transaction: every so many of them is open, and two thousand begin in a second."""
    count = size.open + size.finished
    for number in range(count):
        txn_id = f"{number:032x}"
        header = paths.header_key(TxnID.parse(txn_id))
        at_ms = NOW_MS + number // 2
        if number % (count // size.open):
            entry = IndexEntry("txn-by-final-state", index_keys.encode("COMMITTED", at_ms, txn_id))
            yield [part_of(Put(header, b'{"state":"COMMITTED"}', Expect.ABSENT, (entry,)))]
            continue
        entry = IndexEntry("txn-by-deadline", index_keys.encode(at_ms + 60_000, txn_id))
        write = IndexEntry("writes-by-segment", index_keys.encode(segment(number // 7), txn_id))
        ack = IndexEntry("acks-by-segment-subscription", index_keys.encode(segment(number // 7), "a subscription"))
        prefix = Key(f"/txn-op/{txn_id}", txn_id)
        yield [
            part_of(Put(header, b'{"state":"OPEN"}', Expect.ABSENT, (entry,))),
            sequential_part(PutSequential(prefix, b'{"kind":"write"}', (write,)), f"{2 * number:020d}"),
            sequential_part(PutSequential(prefix, b'{"kind":"ack"}', (ack,)), f"{2 * number + 1:020d}"),
        ]


def nodes(size: Size) -> Iterator[Op]:
    """Return the nodes of all transactions as the store would make them, parents first."""
    options = MetadataOptions()
    known = NodeCache(10 * (size.open + size.finished))
    planner = Planner(known, options.index_entries_together_max)
    for steps in transactions(size):
        plan = planner.plan(steps, {}, "0.0", set())
        for parent in plan.parents:
            for node in reversed(known.missing_parents(parent)):
                known.parents.put(node, True)
                yield CreateNode(node)
        for place in plan.made:
            known.add_to_entry_count(place.parent, 1)
        yield from plan.changes


async def load(zookeeper: ZooKeeperClient, size: Size) -> int:
    """Make all nodes, in few large requests, some under way at once; return how many."""
    some: list[Op] = []
    taken = made = 0
    room = asyncio.Semaphore(REQUESTS_TOGETHER)
    async with asyncio.TaskGroup() as group:

        async def send(ops: list[Op]) -> None:
            try:
                await zookeeper.multi(ops)
            finally:
                room.release()

        for op in nodes(size):
            assert isinstance(op, CreateNode | SetNode)
            some.append(op)
            made += isinstance(op, CreateNode)
            taken += len(op.path) + len(op.data) + 60
            if taken > REQUEST_BYTES:
                await room.acquire()
                group.create_task(send(some))
                some, taken = [], 0
        await room.acquire()
        group.create_task(send(some))
    return made


async def largest_listing(zookeeper: ZooKeeperClient) -> tuple[int, int, str]:
    """Return the most bytes and the most names that any listing has, and the node with the most bytes."""
    left = [RECORDS, "/indexes"]
    most_bytes, most_names, where = 0, 0, ""
    while left:
        some, left = left[-LISTED_TOGETHER:], left[:-LISTED_TOGETHER]
        for node, names in zip(some, await asyncio.gather(*map(zookeeper.children, some)), strict=True):
            assert names is not None
            size = sum(4 + len(name) for name in names)
            if size > most_bytes:
                most_bytes, where = size, node
            most_names = max(most_names, len(names))
            # What is no leaf goes on; nothing stands below a leaf.
            left += [f"{node}/{name}" for name in names if "=" not in name]
    return most_bytes, most_names, where


async def measured(what: str, do: Callable[[], Awaitable[object]]) -> None:
    """Show how long something takes."""
    began = time.perf_counter()
    found = await do()
    print(f"{what}: {time.perf_counter() - began:.3f} s, {found}")  # noqa: T201


async def check(hosts: str, size: Size) -> None:
    """Load the tree, check every listing, and use the loaded store."""
    # A server that collects garbage among millions of nodes may be silent for long.
    options = MetadataOptions(session_ttl_ms=60_000)
    store = await open_metadata_store(f"zookeeper://{hosts}/large", SystemEnvironment(), options)
    try:
        await measured("load", lambda: load(store.zookeeper, size))
        began = time.perf_counter()
        most_bytes, most_names, where = await largest_listing(store.zookeeper)
        print(f"largest listing: {most_names} names, {most_bytes} bytes at {where}")  # noqa: T201
        print(f"looked at in {time.perf_counter() - began:.1f} s")  # noqa: T201
        assert most_bytes <= size.listing_bytes_max
        assert most_names <= size.listing_names_max

        await measured("deadlines, a page of 100", lambda: page_of(store, index_keys.prefix_range("txn-by-deadline")))
        committed = index_keys.prefix_range("txn-by-final-state", "COMMITTED")
        await measured("finished, a page of 100", lambda: page_of(store, committed))
        writes = index_keys.prefix_range("writes-by-segment", segment(3))
        await measured("writes of a segment, a page of 100", lambda: page_of(store, writes))
        one = TxnID.parse(f"{6 * (size.open // 2):032x}")
        await measured("operations of one", lambda: page_of(store, paths.operations_range(one)))

    finally:
        await store.close()


async def page_of(store: IMetadataStore, target: KeyRange | IndexRange) -> int:
    """Return how many records the first page of a range has."""
    page = await (store.scan(target, 100) if isinstance(target, KeyRange) else store.scan_index(target, 100))
    assert page.records
    return len(page.records)


@pytest.mark.parametrize("size", SIZES)
def test_no_listing_grows(size: Size, tmp_path: Path) -> None:
    """With many transactions open and finished every node has few children, and pages are read as with few."""
    # What is loaded need not outlive the test.
    with Ensemble(tmp_path, setup=Setup({"forceSync": "no"}, size.java_options)) as ensemble:
        asyncio.run(check(ensemble.hosts, size))
