"""Latency of ending a transaction: by the number of its topics, until a message is received, and on a sealed topic."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from txnframework import Consumer, Transaction
from txnframework.errors import EndTransactionTimeout
from txnframework_compare.measures._measure import (
    Figure,
    Measure,
    NotMeasurable,
    Plot,
    TableView,
    median,
    p99,
    timed_ms,
)
from txnframework_compare.system import RECEIVE_TIMEOUT_MS, System

PAUSE_S: Final = 0.02
"""The pause between a transaction's sends and its end, so that work triggered by the sends is finished."""


async def ending(system: System, participants: int) -> tuple[Figure, ...]:
    """
    Write to ``participants`` topics in a transaction, and time the call that ends it. Commits and aborts alternate.
    """
    commits, aborts = [], []
    for _ in range(system.workload.samples_of(participants)):
        committed = await _written(system, participants)
        commits.append(await timed_ms(committed.commit()))
        await system.settle(committed)
        aborted = await _written(system, participants)
        aborts.append(await timed_ms(aborted.abort()))
        await system.settle(aborted)
    return Figure("commit", median(commits), "ms"), Figure("abort", median(aborts), "ms")


async def _written(system: System, participants: int) -> Transaction:
    """Return an open transaction that has written to ``participants`` topics."""
    producers = await system.producers("ending", participants)
    txn = await system.begin()
    await asyncio.gather(*(producer.send(system.workload.message(), txn=txn) for producer in producers))
    await asyncio.sleep(PAUSE_S)
    return txn


ENDING = Measure(
    name="ending",
    title="Ending a transaction",
    take=ending,
    axis="participants",
    sizes=lambda workload: workload.participants,
    # A long timeout: the duration is measured, not the timeout.
    transactions={"end_timeout_ms": 600_000},
    views=(
        TableView(
            "commit, ms",
            {"commit": "commit"},
            "Duration of commit after a transaction wrote to this number of topics.",
        ),
        TableView("abort, ms", {"abort": "abort"}, "The same for abort."),
    ),
    plot=Plot("lines", {"commit": "commit"}, "duration of commit (ms)"),
)


END_TIMEOUT_MS: Final = 400
"""A short timeout: a family that cannot end such a transaction retries until the next retry would exceed it."""


async def sealed(system: System, _: int) -> tuple[Figure, ...]:
    """
    Write to two topics, seal one of them, and commit.

    Read both topics after all reachable participants have settled.
    """
    system.sealed += 1
    name = f"sealed-{system.sealed}"
    producers = await system.producers(name, 2)
    txn = await system.begin()
    for producer in producers:
        await producer.send(system.workload.message(), txn=txn)
    before = [await _readable(system, f"{name}-{number}") for number in range(2)]
    segment = await system.client.host.segment(await system.segment(f"{name}-1"))
    await segment.ledger.seal()
    begun_s = time.perf_counter()
    commit: float | NotMeasurable
    try:
        await txn.commit()
        commit = (time.perf_counter() - begun_s) * 1e3
    except EndTransactionTimeout as error:
        commit = NotMeasurable(f"EndTransactionTimeout, end_timeout_ms is {error.timeout_ms}")
    took_ms = (time.perf_counter() - begun_s) * 1e3
    if isinstance(commit, NotMeasurable):
        # The decision is stored. In so short a time the other topic may be unsettled too; a sweep settles it, as done
        # here.
        await system.settle(txn)
    after = [await _readable(system, f"{name}-{number}") for number in range(2)]
    new = sum(now > then for now, then in zip(after, before, strict=True))
    return Figure("commit", commit, "ms"), Figure("took", took_ms, "ms"), Figure("readable", new, "messages")


async def _readable(system: System, topic: str) -> int:
    """Return how many messages a new reader of a topic receives."""
    async with system.other() as client, await client.reader(system.topic(topic)) as reader:
        return len([message async for message in reader])


SEALED = Measure(
    name="sealed",
    title="Ending on a sealed segment",
    take=sealed,
    transactions={"end_timeout_ms": END_TIMEOUT_MS},
    views=(
        TableView(
            "one of two topics is sealed before the commit",
            {"commit": "commit, ms", "took": "took, ms", "readable": "readable of 2"},
            "Whether commit succeeds, how long it takes, and how many of its two messages are readable afterwards.",
            compared=False,
        ),
    ),
    plot=Plot("dots", {"took": "until commit returned"}, "until commit returned (ms)"),
)


async def visible(system: System, _: int) -> tuple[Figure, ...]:
    """Commit one message at a time, while another client's consumer waits for it."""
    (producer,) = await system.producers("visible", 1)
    confirmed, seen = [], []
    async with (
        system.other() as client,
        await client.consumer(system.topic("visible-0"), "compare", start="latest") as consumer,
    ):
        for _ in range(2 * system.workload.samples):
            txn = await system.begin()
            await producer.send(system.workload.message(), txn=txn)
            waiting = asyncio.ensure_future(_next(consumer))
            await asyncio.sleep(0)  # the consumer waits before the commit begins
            begun_s = time.perf_counter()
            await txn.commit()
            confirmed.append((time.perf_counter() - begun_s) * 1e3)
            seen.append((await waiting - begun_s) * 1e3)
            await system.settle(txn)
    return (
        Figure("confirmed", median(confirmed), "ms"),
        Figure("received", median(seen), "ms"),
        Figure("received p99", p99(seen), "ms"),
    )


async def _next(consumer: Consumer) -> float:
    """Receive and acknowledge a message; return when it was received."""
    message = await consumer.receive(timeout_ms=RECEIVE_TIMEOUT_MS)
    at_s = time.perf_counter()
    await consumer.ack(message)
    return at_s


COLUMNS: Final = {"confirmed": "confirmed", "received": "received", "received p99": "received, p99"}

VISIBLE = Measure(
    name="visible",
    title="Commit to visible",
    take=visible,
    views=(
        TableView(
            "time since commit was called, ms",
            COLUMNS,
            "When commit returns, and when a consumer of another client in this process receives the message.",
        ),
    ),
    plot=Plot("dots", COLUMNS, "time since commit was called (ms)"),
)
