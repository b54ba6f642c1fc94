"""
Measure appends to ledgers on NATS beside plain publishing: ``python bench/nats_ledgers.py --servers 3 --writers 1,10``.

Each writer has a connection of its own and 64 calls under way. A call appends one entry, or publishes one message, of
100 bytes. All is confirmed with three replicas, or with one server that syncs each message. Each round measures both
sides in turn, so that other work on the machine disturbs both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import nats as client
from nats.js.api import StreamConfig

from txnframework.environment import SystemEnvironment
from txnframework.model import Append
from txnframework_nats.ledgers import NatsLedgerOptions, open_ledger_store
from txnframework_nats.testing.servers.nats import Nats

ENTRY = b"x" * 100
UNDER_WAY = 64
ROUNDS = 5

Call = Callable[[], Awaitable[object]]


async def rate(calls: list[Call], seconds: float) -> float:
    """Return how many calls a second all writers finish together."""
    until = time.perf_counter() + seconds
    finished = 0

    async def repeat(call: Call) -> None:
        nonlocal finished
        while time.perf_counter() < until:
            await call()
            finished += 1

    begun = time.perf_counter()
    await asyncio.gather(*(repeat(call) for call in calls for _ in range(UNDER_WAY)))
    return finished / (time.perf_counter() - begun)


async def publishing(hosts: str, writers: int, replicas: int, stack: AsyncExitStack) -> list[Call]:
    """Return the calls of writers that publish to one stream."""
    calls: list[Call] = []
    for number in range(writers):
        connection = await client.connect([f"nats://{host}" for host in hosts.split(",")])
        stack.push_async_callback(connection.close)
        stream = connection.jetstream()
        if number == 0:
            await stream.add_stream(StreamConfig(name="raw", subjects=["raw.>"], num_replicas=replicas))
        calls.append(lambda stream=stream, subject=f"raw.{number}": stream.publish(subject, ENTRY))
    return calls


async def appending(hosts: str, writers: int, shared: bool, stack: AsyncExitStack) -> list[Call]:
    """Return the calls of writers that append to a ledger each, or all to one."""
    calls: list[Call] = []
    for number in range(writers):
        store = await open_ledger_store(f"nats://{hosts}/bench", SystemEnvironment(), NatsLedgerOptions(), "bench")
        stack.push_async_callback(store.close)
        ledger = await store.create("shared" if shared else f"own-{number}")
        calls.append(lambda ledger=ledger: ledger.append((Append(ENTRY),), None))
    return calls


async def measure(hosts: str, servers: int, writers: int, seconds: float) -> None:
    """Measure one number of writers, and print the rates and their ratios."""
    async with AsyncExitStack() as stack:
        raw = await publishing(hosts, writers, 3 if servers >= 3 else 1, stack)
        own = await appending(hosts, writers, False, stack)
        shared = await appending(hosts, writers, True, stack)
        rates: dict[str, list[float]] = {"raw": [], "own": [], "shared": []}
        for _ in range(ROUNDS):
            for name, calls in (("raw", raw), ("own", own), ("shared", shared)):
                rates[name].append(await rate(calls, seconds))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    print(
        f"{servers} server(s), {writers} writers: raw publish {middle['raw']:,.0f} rows/s; append to a ledger each"
        f" {middle['own']:,.0f} ({middle['own'] / middle['raw']:.2f} of raw); all to one ledger {middle['shared']:,.0f}"
        f" ({middle['shared'] / middle['raw']:.2f})"
    )


def main() -> None:
    """Start servers, and measure each number of writers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--writers", default="1,10,50")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    for writers in map(int, arguments.writers.split(",")):
        with tempfile.TemporaryDirectory() as directory, Nats(Path(directory), servers=arguments.servers) as nats:
            asyncio.run(measure(nats.hosts, arguments.servers, writers, arguments.seconds))


if __name__ == "__main__":
    main()
