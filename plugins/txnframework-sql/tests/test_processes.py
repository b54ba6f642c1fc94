"""Several processes at once, and the state after a kill."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import LeaseHeld
from txnframework.interfaces import ILedgerStore
from txnframework.model import EARLIEST, EntryRange, IndexRange, Key, KeyRange, LedgerEntry, Limit
from txnframework.testing import VirtualEnvironment
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.steps.leases import clock_of

Start = Callable[..., "subprocess.Popen[str]"]

PATIENCE_S = 240
"""Timeout in seconds, long enough for a busy machine."""
STEP_MS = 100


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of a process; return its output."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return said.splitlines()


async def read_all(store: ILedgerStore, name: str) -> list[LedgerEntry]:
    """Return every entry of a managed ledger."""
    ledger = await store.open(name)
    upto = (await ledger.tail()).last_confirmed
    found: list[LedgerEntry] = []
    while page := await ledger.read(EntryRange(found[-1].position if found else EARLIEST, upto), Limit(100)):
        found += page
    return found


async def test_compare_and_set_by_several_processes(url: str, start: Start) -> None:
    """No increment is lost, no number is given twice, and the index has only the last value."""
    processes = [start("count", url, "40") for _ in range(3)]
    numbered = [path for process in processes for path in lines_of(process)]
    assert len(set(numbered)) == 120

    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    record = await store.get(Key("/counter"))
    assert record is not None
    assert record.value == b"120"
    page = await store.scan_index(IndexRange("by-value", b"", b"\xff"), 10)
    assert page.records == (record,)
    scanned = await store.scan(KeyRange("/numbered/", "/numbered0"), 1000)
    assert [found.key.path for found in scanned.records] == sorted(numbered)
    await store.close()


async def test_appends_by_several_processes(url: str, start: Start) -> None:
    """Every entry is stored exactly once at its confirmed position, without gaps, over ledgers that roll."""
    processes = [start("append", url, f"p{number}", "200") for number in range(3)]
    told = dict(line.split(" ") for process in processes for line in lines_of(process))
    assert len(told) == 600

    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    found = await read_all(store, "shared")
    assert {str(entry.position): entry.data.decode() for entry in found} == told
    assert [entry.position for entry in found] == sorted(entry.position for entry in found)
    sizes = Counter(entry.position.ledger_id for entry in found)
    assert len(sizes) == 6
    assert all(size == 100 for size in sizes.values())
    await store.close()


async def test_killed_writer_loses_nothing_confirmed(url: str, start: Start) -> None:
    """After ``kill -9`` of a process during its appends, every confirmed entry is stored."""
    process = start("append", url, "p", "0")
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(300)]
    process.kill()
    told += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]

    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    found = {f"{entry.position} {entry.data.decode()}\n" for entry in await read_all(store, "shared")}
    assert set(told) <= found
    ledger = await store.open("shared")
    for line in told:
        position, _, data = line.strip().partition(" ")
        copy = await ledger.find_sequence("p", int(data.removeprefix("p:")))
        assert copy is not None
        assert str(copy.position) == position
    await store.close()


async def test_killed_writer_of_joint_appends(url: str, start: Start) -> None:
    """After ``kill -9`` of a process during its steps, each step is stored in all parts or in none."""
    process = start("join", url)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(300)]
    process.kill()
    told += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]

    records = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    for name in ("left", "right"):
        # A server may still work on the last statement of the killed process.
        await (await store.open(name)).seal()
    left, right = [[entry.data for entry in await read_all(store, name)] for name in ("left", "right")]
    page = await records.scan(KeyRange("/step/", "/step0"), 100_000)
    steps = {record.key.path.removeprefix("/step/") for record in page.records}
    assert len(left) == len(right) == len(steps)
    assert {data.decode() for data in left} == {data.decode() for data in right} == steps
    assert {line.strip() for line in told} <= steps
    await store.close()
    await records.close()


@pytest.mark.parametrize(
    "target", [Key("/a"), KeyRange("/a", "/b"), IndexRange("kind", b"k", b"l")], ids=["record", "range", "index"]
)
async def test_watch_across_processes(url: str, start: Start, target: Key | KeyRange | IndexRange) -> None:
    """A watch wakes for the writes of another process."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions(poll_ms=5))
    process = start("put", url, "/a")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    watch = await store.watch(target)
    waiting = asyncio.create_task(watch.changed())
    process.stdin.write("\n")
    process.stdin.flush()
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert await store.get(Key("/a")) is not None
    await store.close()


async def test_lease_of_a_killed_process(url: str, start: Start) -> None:
    """A waiting process gets the lease of a killed one, with a higher fencing number."""
    # The observer has a clock of its own, so that no process has to be quick to keep its leases.
    environment = VirtualEnvironment(now_ms=SystemEnvironment().now_ms())
    clock = clock_of(environment.now_ms)
    store = await open_metadata_store(url, environment, MetadataOptions(), clock=clock)
    process = start("hold", url, "name")
    assert process.stdout is not None
    fencing = int(process.stdout.readline())
    with pytest.raises(LeaseHeld) as held:
        await store.acquire_lease("name", "here")
    assert held.value.holder == "the other process"
    watch = await store.watch(held.value.key)
    process.kill()
    async with asyncio.timeout(PATIENCE_S):
        while await store.get(held.value.key) is not None:
            waiting = asyncio.create_task(watch.changed())
            while not waiting.done():
                await environment.advance(STEP_MS)
                await store.get(held.value.key)  # what the store itself does by then is done
    assert (await store.acquire_lease("name", "here")).fencing > fencing
    await store.close()
