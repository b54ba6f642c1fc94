"""Clients in processes of their own, as the suites see them."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest
from zope.interface import providedBy

from txnframework.errors import Closed, LeaseHeld, VersionMismatch
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Append, Expect, Key, Put
from txnframework.testing import Processes
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness

KEY = Key("/a")


class MetadataProcesses(Processes[IMetadataStore]):
    """Each with a memory of its own."""

    client = MemoryMetadataHarness


class LedgerProcesses(Processes[ILedgerStore]):
    """Each with a memory of its own."""

    client = MemoryLedgerHarness


async def test_each_client_is_a_process(tmp_path: Path) -> None:
    """Every open starts an empty process, which ends with the block."""
    data = MetadataProcesses(tmp_path)
    async with data.open() as one, data.open() as two:
        assert len(multiprocessing.active_children()) == 2
        await one.put(Put(KEY, b"value", Expect.ABSENT))
        assert await two.get(KEY) is None
        assert one.session != two.session
    assert multiprocessing.active_children() == []


async def test_settling_ends_when_nothing_more_is_asked_for(tmp_path: Path) -> None:
    """Each answer may cause the next question; a process that never stops asking does not block the test."""
    async with (data := MetadataProcesses(tmp_path)).open() as store:
        answers = 0

        async def ask(times: int) -> None:
            nonlocal answers
            for _ in range(times):
                await store.get(KEY)
                answers += 1

        asking = asyncio.ensure_future(ask(8))
        await data.settle()
        assert asking.done()
        for_ever = asyncio.ensure_future(ask(1_000_000_000))
        await data.settle()
        assert answers > 8
        for_ever.cancel()
        await asyncio.gather(for_ever, return_exceptions=True)


async def test_same_promises(tmp_path: Path) -> None:
    """The proxy of an object provides the same interfaces, and so do the objects that it returns."""
    directory = tmp_path / "here"
    directory.mkdir()
    async with MemoryMetadataHarness(directory).open() as here, MetadataProcesses(tmp_path).open() as there:
        assert list(providedBy(there)) == list(providedBy(here))
        leases = [await store.acquire_lease("name", "one") for store in (here, there)]
        assert list(providedBy(leases[1])) == list(providedBy(leases[0]))
        assert leases[1].key == leases[0].key
        watches = [await store.watch(KEY) for store in (here, there)]
        assert list(providedBy(watches[1])) == list(providedBy(watches[0]))


async def test_errors_keep_their_attributes(tmp_path: Path) -> None:
    """An error keeps its type and attributes; an unexpected one says where it comes from."""
    async with MetadataProcesses(tmp_path).open() as store:
        version = await store.put(Put(KEY, b"", Expect.ABSENT))
        with pytest.raises(VersionMismatch) as mismatch:
            await store.put(Put(KEY, b"", Expect.ABSENT))
        assert (mismatch.value.key, mismatch.value.actual) == (KEY, version)
        await store.acquire_lease("name", "one")
        with pytest.raises(LeaseHeld, match="held by one") as held:
            await store.acquire_lease("name", "two")
        assert (held.value.name, held.value.holder) == ("name", "one")
        with pytest.raises((AttributeError, TypeError)) as unexpected:
            await store.get(None)  # type: ignore[arg-type]
        assert "Traceback" in unexpected.value.__notes__[0]


async def test_time_comes_from_the_test(tmp_path: Path) -> None:
    """A process uses the test's clock, which stops until the test advances it."""
    data = LedgerProcesses(tmp_path)
    async with data.open() as store:
        ledger = await store.create("a")
        positions = []
        for _ in range(2):
            await data.pass_time(1000)
            positions += [appended.position for appended in await ledger.append((Append(b""),), None)]
        assert await ledger.find_time(data.now_ms() + 1) == positions[1]
        assert await ledger.find_time(data.now_ms()) == positions[0]


async def test_killed(tmp_path: Path) -> None:
    """Pending and later calls to a killed process raise an error; other processes continue."""
    data = MetadataProcesses(tmp_path)
    async with data.open() as one, data.open() as two:
        waiting = asyncio.create_task((await one.watch(KEY)).changed())
        await data.settle()
        await data.crash(one)
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await one.get(KEY)
        assert await two.get(KEY) is None
        assert len(multiprocessing.active_children()) == 1


def test_process_that_breaks_down(tmp_path: Path) -> None:
    """A process that ends by itself fails its test, also where the test expects a closed object."""

    async def main() -> None:
        async with MetadataProcesses(tmp_path).open() as store:
            (process,) = multiprocessing.active_children()
            process.kill()
            with pytest.raises(Closed):
                await store.get(KEY)

    with pytest.raises(RuntimeError, match="by itself"):
        asyncio.run(main())
    assert multiprocessing.active_children() == []


def test_opening_that_fails(tmp_path: Path) -> None:
    """The error is raised here, and no process remains."""

    async def main() -> None:
        async with MetadataProcesses(tmp_path).open_as("a metadata store belongs to none"):
            pass

    with pytest.raises(AssertionError):
        asyncio.run(main())
    assert multiprocessing.active_children() == []


async def test_cancelled_wait(tmp_path: Path) -> None:
    """A wake-up that arrives after the wait was cancelled goes to the next wait, once."""
    data = MetadataProcesses(tmp_path)
    async with data.open() as store:
        watch = await store.watch(KEY)
        waiting = asyncio.create_task(watch.changed())
        await data.settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await store.put(Put(KEY, b"", Expect.ABSENT))
        async with asyncio.timeout(60):
            await watch.changed()
        again = asyncio.create_task(watch.changed())
        await data.settle()
        assert not again.done()
        again.cancel()
