"""Many writing processes, ledgers that are rolled meanwhile, and a reader that follows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, EntryRange, LedgerEntry, Limit, Tail

if TYPE_CHECKING:
    from conftest import Ledgers

PROCESSES = 8
ENTRIES = 3_000
ROLLS = 5


@asynccontextmanager
async def writers(url: str) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Start the writing processes, and yield when all are ready; running ones are killed at the end."""
    program = str(Path(__file__).with_name("writer.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            program,
            url,
            f"w{number}",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            limit=1 << 24,
        )
        for number in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def told(process: asyncio.subprocess.Process) -> dict[str, str]:
    """Start a writer, and wait for its end; return the confirmed entries by position."""
    said, _ = await process.communicate(b"\n")
    assert process.returncode == 0
    lines = said.decode().splitlines()
    found = {position: data for position, _, data in (line.partition(" ") for line in lines)}
    assert len(found) == len(lines)
    return found


async def follow(ledger: IManagedLedger) -> list[LedgerEntry]:
    """Read up to each tail, woken by the writers, until the ledger is sealed; return all entries."""
    found: list[LedgerEntry] = []
    async with asyncio.timeout(90):
        watch = await ledger.watch()
        while True:
            tail = await ledger.tail()
            await read_up_to(ledger, tail, found)
            if tail.sealed:
                return found
            await watch.changed()


async def read_up_to(ledger: IManagedLedger, tail: Tail, found: list[LedgerEntry]) -> None:
    while page := await ledger.read(
        EntryRange(found[-1].position if found else EARLIEST, tail.last_confirmed), Limit(500)
    ):
        found += page
    assert not found or found[-1].position == tail.last_confirmed


async def disturb(ledger: IManagedLedger) -> Tail:
    """Roll repeatedly between the writes; seal when enough was written."""
    watch = await ledger.watch()
    for step in range(1, ROLLS + 1):
        while await entries_of(ledger) < step * ENTRIES // ROLLS:
            await watch.changed()
        tail = await (ledger.roll() if step < ROLLS else ledger.seal())
    return tail


async def entries_of(ledger: IManagedLedger) -> int:
    return sum(summary.entries for summary in await ledger.ledgers(-1, 10_000))


async def test_many_processes(ledgers: Ledgers) -> None:
    """The reader sees no gap, no duplicate and nothing after the seal, and finds every confirmed entry."""
    async with ledgers.opened() as one, ledgers.opened() as two:
        ledger = await one.create("shared")
        async with writers(ledgers.url) as processes:
            following = asyncio.create_task(follow(await two.open("shared")))
            disturbing = asyncio.create_task(disturb(ledger))
            confirmed = await asyncio.gather(*(told(process) for process in processes))
            sealed, followed = await disturbing, await following

        assert sealed.sealed
        assert await ledger.tail() == sealed
        assert len(followed) >= ENTRIES
        standing: list[LedgerEntry] = []
        await read_up_to(ledger, sealed, standing)
        assert followed == standing

        by_ledger: dict[int, list[int]] = defaultdict(list)
        for entry in standing:
            by_ledger[entry.position.ledger_id].append(entry.position.entry_id)
        assert all(ids == list(range(len(ids))) for ids in by_ledger.values())
        assert len({entry.data for entry in standing}) == len(standing)
        # What was appended was confirmed as well: no process was stopped.
        assert {str(entry.position): entry.data.decode() for entry in standing} == {
            position: data for one in confirmed for position, data in one.items()
        }
        assert all(len(one) for one in confirmed)
