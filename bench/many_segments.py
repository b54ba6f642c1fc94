"""
Measure consumers of topics with many segments: ``python bench/many_segments.py --segments 25,100,200,400``.

Each sample has a client of its own, as in a new process. ``new`` creates the subscription and opens its first consumer,
``open`` opens a consumer of the subscription that exists by then, and ``first`` is the time from there to the first
message. ``close`` closes this consumer, and ``end`` closes a client with such a consumer. The figures are the medians
of the samples. The last column is the time for each segment, by that of the smallest topic: 1 is proportional growth.

``--calls`` counts the calls of the stores' methods instead. ``beside.py --script many_segments.py``
compares two working trees.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Protocol

from backends import BACKENDS
from counting_store import counted_calls
from measurement import opened, timed
from rich.console import Console
from rich.table import Table

import txnframework
from txnframework import Consumer
from txnframework.model import OtherType

TOPIC, SUBSCRIPTION = "orders", "s"
WHAT = ("new", "open", "first", "close", "end")
MESSAGE_TIMEOUT_MS = 120_000
Sample = dict[str, float]


class Stores(Protocol):
    """Where the topics are stored."""

    def config(self, database: str) -> dict[str, object]:
        """Return the sections of a configuration for this database."""


@dataclass(frozen=True)
class Memory:
    """Stores in the memory of this process, each kept while a client has it open."""

    name: str = "memory"
    versions: Mapping[str, str] = field(default_factory=dict)

    def config(self, database: str) -> dict[str, object]:
        return {one: {"url": f"memory://many-{database}"} for one in ("metadata", "ledger")}


@contextmanager
def stores(name: str, directory: Path) -> Iterator[Stores]:
    """Yield the stores of a backend; their files are in a directory."""
    if name == "memory":
        yield Memory()
        return
    chosen: AbstractContextManager[Stores] = BACKENDS[name](directory)
    with chosen as backend:
        yield backend


async def consume(client: txnframework.Client, subscription: str, subscription_type: str) -> Consumer:
    """Open a consumer, and create its subscription if it does not exist."""
    return await client.consumer(TOPIC, subscription, type=OtherType(subscription_type), start="earliest")


async def sample(config: Mapping[str, object], subscription: str, subscription_type: str) -> Sample:
    """Measure one consumer of each kind; the subscription is new, and the topic has messages."""
    found: Sample = {}
    async with opened(config) as client:
        begun = perf_counter()
        consumer = await consume(client, subscription, subscription_type)
        found["new"] = perf_counter() - begun
        await consumer.close()
    async with opened(config) as client:
        begun = perf_counter()
        consumer = await consume(client, subscription, subscription_type)
        found["open"] = perf_counter() - begun
        await consumer.receive(timeout_ms=MESSAGE_TIMEOUT_MS)
        found["first"] = perf_counter() - begun
        found["close"] = await timed(consumer.close())
    async with opened(config) as client:
        await consume(client, subscription, subscription_type)
        begun = perf_counter()
    found["end"] = perf_counter() - begun
    return found


async def prepare(client: txnframework.Client, segments: int) -> None:
    """Create a topic, and send some messages to it."""
    await client.create_topic(TOPIC, segments=segments)
    producer = await client.producer(TOPIC)
    await producer.send_many([b"x" * 100] * 50)


async def measured(backend: Stores, segments: int, samples: int, subscription_type: str) -> Sample:
    """Return the medians for one number of segments, in milliseconds."""
    config = backend.config(f"of{segments}")
    async with opened(config) as client:  # keeps the stores in memory
        await prepare(client, segments)
        found = [await sample(config, f"{SUBSCRIPTION}{number}", subscription_type) for number in range(samples)]
    return {what: statistics.median(one[what] for one in found) * 1e3 for what in WHAT}


async def counted(backend: Stores, segments: int, subscription_type: str) -> Sample:
    """Return how often each method of the stores was called by an opening and a close."""
    config = backend.config(f"calls{segments}")
    async with opened(config) as client:
        await prepare(client, segments)
        await (await consume(client, SUBSCRIPTION, subscription_type)).close()
        async with opened(config) as counting:
            with counted_calls(counting) as calls:
                await (await consume(counting, SUBSCRIPTION, subscription_type)).close()
    return {what: float(number) for what, number in sorted(calls.items())}


def table(title: str, figures: Mapping[int, Sample]) -> Table:
    """Return one row for each figure, and one column for each number of segments; the growth is for each segment."""
    shown = Table("figure", *map(str, figures), "growth", title=title)
    smallest, largest = min(figures), max(figures)
    for what in dict.fromkeys(what for found in figures.values() for what in found):
        values = [found.get(what, 0.0) for found in figures.values()]
        first, last = (figures[size].get(what, 0.0) / size for size in (smallest, largest))
        shown.add_row(what, *(f"{value:,.1f}" for value in values), f"{last / first:.2f}" if first else "-")
    return shown


def main() -> None:
    """Measure the chosen backends, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["memory", *BACKENDS], action="append", help="default: all but zookeeper")
    parser.add_argument("--segments", default="25,100,200,400")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--type", default="exclusive", help="the subscription type")
    parser.add_argument("--calls", action="store_true", help="count the calls of the stores' methods")
    parser.add_argument("--json", action="store_true", help="print the figures only, as JSON")
    arguments = parser.parse_args()
    console, found = Console(stderr=arguments.json), {}
    for name in arguments.backend or ["memory", "sqlite", "postgresql"]:
        with tempfile.TemporaryDirectory() as directory, stores(name, Path(directory)) as backend:
            figures: dict[int, Sample] = {}
            for segments in map(int, arguments.segments.split(",")):
                if arguments.calls:
                    figures[segments] = asyncio.run(counted(backend, segments, arguments.type))
                else:
                    figures[segments] = asyncio.run(measured(backend, segments, arguments.samples, arguments.type))
            found[name] = {f"{what}, {size}": value for size, row in figures.items() for what, value in row.items()}
            unit = "calls" if arguments.calls else "ms"
            console.print(table(f"{name}, {unit}", figures))
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
