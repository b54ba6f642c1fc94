"""Time from the commit until another client receives the transaction's messages."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from txnframework import Consumer
from txnframework_compare.measures._measure import Figure, Measure, Plot, View
from txnframework_compare.measures._timing import median, p99
from txnframework_compare.system import SOON_MS, System


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
    message = await consumer.receive(timeout_ms=SOON_MS)
    at_s = time.perf_counter()
    await consumer.ack(message)
    return at_s


COLUMNS: Final = {"confirmed": "confirmed", "received": "received", "received p99": "received, p99"}

VISIBLE = Measure(
    name="visible",
    title="Commit to visible",
    take=visible,
    views=(
        View(
            "since the call of commit, ms",
            COLUMNS,
            "When commit returns, and when a consumer of another client in this process has the message.",
        ),
    ),
    plot=Plot("dots", COLUMNS, "since the call of commit (ms)"),
)
