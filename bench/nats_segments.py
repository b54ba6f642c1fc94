"""
Measure many segments on NATS: ``python bench/nats_segments.py --servers 3 --segments 10000``.

Creates so many ledgers, appends an entry to each, and reads each in another process. Reports times, the memory of the
processes and servers, and the streams. All calls run 64 at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, EntryRange, Limit, Position
from txnframework_nats.ledgers import NatsLedgerOptions, NatsLedgerStore, open_ledger_store
from txnframework_nats.testing.servers.nats import Nats

ENTRY = b"x" * 100
TOGETHER = 64


async def each(names: list[str], call: Callable[[str], Awaitable[object]]) -> None:
    """Call with each name, 64 at a time."""
    left = iter(names)

    async def repeat() -> None:
        for name in left:
            await call(name)

    await asyncio.gather(*(repeat() for _ in range(TOGETHER)))


@contextmanager
def reported(what: str, count: int) -> Iterator[None]:
    """Print how long the block takes, and the memory of this process after it."""
    begun = time.perf_counter()
    yield
    seconds = time.perf_counter() - begun
    print(f"{what}: {seconds:.1f} s, {count / seconds:,.0f} per s; this process {memory('self'):,} MiB", flush=True)


def memory(process: object) -> int:
    """Return the resident memory of a process in MiB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


async def opened(hosts: str) -> NatsLedgerStore:
    """Open the ledgers."""
    return await open_ledger_store(f"nats://{hosts}/bench", SystemEnvironment(), NatsLedgerOptions(), "bench")


async def write(hosts: str, names: list[str]) -> None:
    """Create all segments, and append to each."""
    store = await opened(hosts)
    handles: dict[str, IManagedLedger] = {}

    async def create(name: str) -> None:
        handles[name] = await store.create(name)

    with reported("created", len(names)):
        await each(names, create)
    with reported("appended to", len(names)):
        await each(names, lambda name: handles[name].append((Append(ENTRY),), None))
    await store.close()


async def read(hosts: str, names: list[str]) -> None:
    """List all segments, open and read each."""
    store = await opened(hosts)
    with reported("listed", len(names)):
        found: list[str] = []
        while page := await store.list_names("", found[-1] if found else "", len(names)):
            found += page
        assert found == sorted(names)
    handles: dict[str, IManagedLedger] = {}

    async def read_one(name: str) -> None:
        handles[name] = ledger = await store.open(name)
        last = (await ledger.tail()).last_confirmed
        (entry,) = await ledger.read(EntryRange(Position(0, -1), last), Limit(10, 1_000_000))
        assert entry.data == ENTRY

    with reported("opened and read", len(names)):
        await each(names, read_one)
    await store.close()


def main() -> None:
    """Start servers, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="where the servers keep their data; on the disk to be measured")
    parser.add_argument("--read", metavar="HOSTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = [f"segment://public/default/t/0000-ffff-{number}" for number in range(arguments.segments)]
    if arguments.read:
        asyncio.run(read(arguments.read, names))
        return
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        Nats(Path(directory), servers=arguments.servers) as nats,
    ):

        def report(when: str) -> None:
            used = ", ".join(f"{memory(server.process_id):,}" for server in nats.servers)
            streams = nats.leader().ask("jsz").get("streams")
            print(f"servers {when}: {used} MiB; {streams} streams", flush=True)

        report("empty")
        asyncio.run(write(nats.hosts, names))
        report("after writing")
        again = [sys.executable, __file__, "--read", nats.hosts, "--segments", str(len(names))]
        subprocess.run(again, check=True)
        report("after reading")


if __name__ == "__main__":
    main()
