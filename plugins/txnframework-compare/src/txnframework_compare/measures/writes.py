"""Writes of a transaction: ledger entries and metadata records, counted at the stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from txnframework import Consumer, Producer
from txnframework.model.transactions import Action
from txnframework_compare.counting import Counts
from txnframework_compare.measures._measure import Figure, Measure, Plot, View
from txnframework_compare.system import System, received

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
        View(
            "ledger entries",
            _columns("entries"),
            "Entries that one transaction appends to topics and logs, by what it does, and in all if it is aborted.",
            compared=False,
        ),
        View(
            "metadata records",
            _columns("records"),
            "Records that it puts, new or again; 'after' is what makes its outcome take effect once commit returned.",
            compared=False,
        ),
        View("deleted metadata records", _columns("deletions"), "Records that it takes away again.", compared=False),
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
