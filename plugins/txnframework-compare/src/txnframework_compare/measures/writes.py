"""Writes of a transaction: ledger entries and metadata records, counted at the stores; alone and concurrently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from txnframework import Consumer, Producer
from txnframework.model.transactions import Action
from txnframework_compare.measures._measure import Figure, Measure, Plot, TableView
from txnframework_compare.system import System, received
from txnframework_compare.write_counts import Counts

PHASES: Final = ("begin", "send", "ack", "end", "after")
UNITS: Final[Mapping[str, Callable[[Counts], int]]] = MappingProxyType(
    {
        "entries": lambda counts: counts.entries,
        "records": lambda counts: counts.records,
        "deletions": lambda counts: counts.deletions,
    }
)


@dataclass(frozen=True, slots=True)
class _Topics:
    """The topics that a transaction reads and writes."""

    inputs: list[Producer]
    consumers: list[Consumer]
    outputs: list[Producer]


async def writes(system: System, _: int) -> tuple[Figure, ...]:
    """Count the writes of one committed and then one aborted transaction, by phase."""
    async with _topics(system) as topics:
        await _counted(system, topics, Action.COMMIT)  # warm-up: reserves a block of ids and creates the logs
        committed = await _counted(system, topics, Action.COMMIT)
        aborted = await _counted(system, topics, Action.ABORT)
        return (*_figures("commit", committed), *_figures("abort", aborted))


async def _counted(system: System, topics: _Topics, action: Action) -> dict[str, Counts]:
    """Send messages one by one and acknowledge as many, each topic's in one call; return the writes of each phase."""
    count = system.workload.messages
    for producer in topics.inputs:
        await producer.send_many([system.workload.message()] * count)
    messages = [await received(consumer, count) for consumer in topics.consumers]
    marks = [system.counts.copy()]
    txn = await system.begin()
    marks.append(system.counts.copy())
    for producer in topics.outputs:
        for _ in range(count):
            await producer.send(system.workload.message(), txn=txn)
    marks.append(system.counts.copy())
    for consumer, some in zip(topics.consumers, messages, strict=True):
        await consumer.ack(*some, txn=txn)
    marks.append(system.counts.copy())
    await (txn.commit() if action is Action.COMMIT else txn.abort())
    marks.append(system.counts.copy())
    await system.settle(txn)
    marks.append(system.counts.copy())
    if action is Action.ABORT:  # released messages must not be delivered to the next transaction
        for consumer in topics.consumers:
            await consumer.ack(*await received(consumer, count))
    return {phase: after.since(before) for phase, (before, after) in zip(PHASES, pairwise(marks), strict=True)}


def _figures(ending: str, phases: dict[str, Counts]) -> list[Figure]:
    found = []
    for unit, of in UNITS.items():
        by_phase = {phase: float(of(counts)) for phase, counts in phases.items()}
        named = {**by_phase, "total": sum(by_phase.values())}
        found += [Figure(f"{ending}.{phase}.{unit}", value, unit) for phase, value in named.items()]
    return found


@asynccontextmanager
async def _topics(system: System) -> AsyncIterator[_Topics]:
    """Yield topics to read and to write; a subscription has one consumer at a time, so it is closed again."""
    count = system.workload.topics
    inputs = await system.producers("input", count)
    outputs = await system.producers("output", count)
    consumers = [
        await system.client.consumer(system.topic(f"input-{number}"), "compare", start="latest")
        for number in range(count)
    ]
    try:
        yield _Topics(inputs, consumers, outputs)
    finally:
        for consumer in consumers:
            await consumer.close()


def _columns(unit: str) -> dict[str, str]:
    return {f"commit.{phase}.{unit}": phase for phase in (*PHASES, "total")} | {f"abort.total.{unit}": "if aborted"}


WRITES = Measure(
    name="writes",
    title="Writes of a transaction",
    take=writes,
    views=(
        TableView(
            "ledger entries",
            _columns("entries"),
            "Entries that one transaction appends to topics and logs, by phase, and the total if it is aborted.",
            compared=False,
        ),
        TableView(
            "metadata records",
            _columns("records"),
            "Records that it creates or updates; 'after' is what applies its outcome after commit returned.",
            compared=False,
        ),
        TableView("deleted metadata records", _columns("deletions"), "Records that it deletes.", compared=False),
    ),
    plot=Plot(
        "stacks",
        {
            "commit.total.entries": "ledger entries",
            "commit.total.records": "metadata records put",
            "commit.total.deletions": "metadata records deleted",
        },
        "writes of one committed transaction (count)",
    ),
)


async def concurrent(system: System, at_once: int) -> tuple[Figure, ...]:
    """Run ``at_once`` small transactions at a time, each with one message to one of a few topics."""
    producers = await system.producers("concurrent", system.workload.topics)
    each = system.workload.samples_of(at_once)
    await asyncio.gather(*(_run(system, [producers[number % len(producers)]]) for number in range(at_once)))
    before, begun = system.counts.copy(), time.perf_counter()
    ended = await asyncio.gather(
        *(_run(system, [producers[number % len(producers)]] * each) for number in range(at_once))
    )
    took_s, count = time.perf_counter() - begun, sum(ended)
    written = system.counts.since(before)
    return (
        Figure("rate", count / took_s, "transactions/s"),
        Figure("entries", written.entries / count, "entries/transaction"),
        Figure("records", written.records / count, "records/transaction"),
    )


async def _run(system: System, producers: list[Producer]) -> int:
    """Run transactions one after the other; return their number."""
    for producer in producers:
        txn = await system.begin()
        await producer.send(system.workload.message(), txn=txn)
        await system.end(txn)
    return len(producers)


CONCURRENT = Measure(
    name="concurrent",
    title="Concurrent transactions",
    take=concurrent,
    axis="transactions at a time",
    sizes=lambda workload: workload.concurrent,
    views=(
        TableView(
            "transactions per second",
            {"rate": "rate"},
            "Transactions of one message each that begin, end and take effect per second.",
        ),
        TableView(
            "ledger entries per transaction",
            {"entries": "entries"},
            "Entries that each of them appends, the message included; concurrent ones share them in batches.",
            compared=False,
        ),
    ),
    plot=Plot("lines", {"rate": "rate"}, "transactions per second (1/s)"),
)
