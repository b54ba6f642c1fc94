"""
Measure the metadata store on NATS beside plain messages: ``python bench/nats_records.py --servers 3``.

Plain messages have the same subjects, sizes and conditions, sent by the driver alone. Each round measures both sides in
turn, so that other work on the machine disturbs both. ``--records`` stores so many records, and then measures the
opening of another store, and the memory that its process needs for the copy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import nats as driver
from nats.js.api import StreamConfig

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import IMetadataStore
from txnframework.model import Expect, Key, Put, Step
from txnframework.plugin import StoreContext, load_plugins
from txnframework_nats.testing.servers.nats import Nats, Setup

VALUE = b"x" * 320
ROUNDS = 5
TOGETHER = 64
BATCHES = (2, 8, 32)

Call = Callable[[], Awaitable[object]]


async def opened(url: str) -> IMetadataStore:
    """Open a metadata store as a host does."""
    provider = load_plugins().metadata_store("nats")
    return await provider.open(StoreContext(url, SystemEnvironment()))


async def milliseconds(call: Call, samples: int) -> float:
    """Return the median time of one call after the other."""
    taken = []
    for _ in range(samples):
        begun = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - begun)
    return 1_000 * statistics.median(taken)


async def rate(call: Call, samples: int) -> float:
    """Return how many calls a second finish, many at a time."""
    begun = time.perf_counter()
    left = iter(range(samples))

    async def repeat() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(repeat() for _ in range(TOGETHER)))
    return samples / (time.perf_counter() - begun)


class Plain:
    """Messages of the driver alone, each with a condition on its subject."""

    def __init__(self, connection: driver.NATS) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=30)
        self._last: dict[int, int] = {}
        self._subjects = iter(range(1 << 30))

    async def update(self) -> None:
        """Replace a message, if its number is the expected one."""
        self._last[-1] = (await self._publish("raw.one", self._last.get(-1, 0))).seq

    async def create(self) -> None:
        """Store the first message of a subject."""
        await self._publish(f"raw.{next(self._subjects)}", 0)

    def batch(self, count: int) -> Call:
        """Return a call that replaces so many messages together."""
        subjects = [f"raw.batch-{count}-{number}" for number in range(count)]
        last = [0] * count

        async def store() -> None:
            name = uuid4().hex
            for number, subject in enumerate(subjects, 1):
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number), **_condition(last[number - 1])}
                if number < count:
                    await self._connection.publish(subject, VALUE, headers=headers)
            headers["Nats-Batch-Commit"] = "1"
            end = (await self._stream.publish(subjects[-1], VALUE, headers=headers)).seq
            last[:] = range(end - count + 1, end + 1)

        return store

    async def _publish(self, subject: str, expected: int) -> driver.js.api.PubAck:
        return await self._stream.publish(subject, VALUE, headers=_condition(expected))


def _condition(expected: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Subject-Sequence": str(expected), "Nats-Rollup": "sub"}


async def measure(hosts: str, servers: int, samples: int) -> None:
    """Measure puts, creations and batches, and print the figures and their ratios."""
    store = await opened(f"nats://{hosts}/bench")
    connection = await driver.connect([f"nats://{host}" for host in hosts.split(",")])
    config = StreamConfig(name="raw", subjects=["raw.>"], num_replicas=3 if servers >= 3 else 1)
    await connection.request(
        "$JS.API.STREAM.CREATE.raw",
        json.dumps({**config.as_dict(), "allow_atomic": True, "allow_rollup_hdrs": True, "storage": "file"}).encode(),
    )
    plain, numbers = Plain(connection), iter(range(1 << 30))
    key = Key("/one")
    await store.put(Put(key, VALUE, Expect.ANY))

    async def put() -> None:
        await store.put(Put(key, VALUE, Expect.ANY))

    async def create() -> None:
        await store.put(Put(Key(f"/many/{next(numbers)}"), VALUE, Expect.ABSENT))

    def batch(count: int) -> Call:
        puts = tuple(Put(Key(f"/batch-{count}/{number}", "p"), VALUE, Expect.ANY) for number in range(count))

        async def apply() -> None:
            await store.apply(Step(puts=puts))

        return apply

    await compared("put, p50 ms", milliseconds, put, plain.update, samples)
    for count in BATCHES:
        few = max(10, samples // 4)
        await compared(f"batch of {count}, p50 ms", milliseconds, batch(count), plain.batch(count), few)
    await compared(f"creations, {TOGETHER} at a time, per s", rate, create, plain.create, 4 * samples)
    read_ms = await milliseconds(lambda: store.get(key), samples)
    print(f"read of a record, p50 ms: {read_ms:.2f}")
    await store.close()
    await connection.close()


async def compared(
    what: str, measure_one: Callable[[Call, int], Awaitable[float]], ours: Call, plain: Call, samples: int
) -> None:
    """Measure both sides in turn, and print their medians."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, values in zip((ours, plain), found, strict=True):
            values.append(await measure_one(call, samples))
    one, other = map(statistics.median, found)
    print(f"{what}: {one:,.2f}; plain messages {other:,.2f}; ratio {one / other:.2f}", flush=True)


OPENING = """
import asyncio, json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from nats_records import opened
from txnframework.model import Key
def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
async def main():
    # An empty store first: all modules are imported then.
    await (await opened(sys.argv[1] + "-empty")).close()
    before, begun = memory(), time.perf_counter()
    store = await opened(sys.argv[1])
    await store.get(Key("/x"))
    print(json.dumps([time.perf_counter() - begun, memory() - before]))
    await store.close()
asyncio.run(main())
"""


async def fill(url: str, records: int) -> None:
    """Store so many records."""
    store = await opened(url)
    numbers = iter(range(records))
    await rate(lambda: store.put(Put(Key(f"/filled/{next(numbers)}"), VALUE, Expect.ABSENT)), records)
    await store.close()


def measure_copy(hosts: str, records: int) -> None:
    """Measure the opening of a store with so many records, in a process of its own."""
    url = f"nats://{hosts}/filled"
    asyncio.run(fill(url, records))
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", OPENING, url, here], capture_output=True, text=True, check=True)
    seconds, kilobytes = json.loads(done.stdout)
    print(
        f"{records:,} records of {len(VALUE)} bytes: opened in {seconds:.1f} s, {kilobytes / 1024:,.0f} MiB of memory,"
        f" {1024 * kilobytes / records:,.0f} bytes for each"
    )


def main() -> None:
    """Start servers, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--sync", default="always", help="sync_interval of the servers")
    parser.add_argument("--directory", type=Path, help="where the servers keep their data; on the disk to be measured")
    arguments = parser.parse_args()
    setup = Setup(sync_interval=arguments.sync)
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        Nats(Path(directory), servers=arguments.servers, setup=setup) as nats,
    ):
        print(f"{arguments.servers} server(s), sync_interval {arguments.sync}")
        asyncio.run(measure(nats.hosts, arguments.servers, arguments.samples))
        if arguments.records:
            measure_copy(nats.hosts, arguments.records)


if __name__ == "__main__":
    main()
