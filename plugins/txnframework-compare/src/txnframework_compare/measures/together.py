"""Cost of concurrent transactions, whose records may share entries in batches."""

from __future__ import annotations

import asyncio
import time

from txnframework import Producer
from txnframework_compare.measures._measure import Figure, Measure, Plot, View
from txnframework_compare.system import System


async def together(system: System, at_once: int) -> tuple[Figure, ...]:
    """Run ``at_once`` small transactions at a time, each with one message to one of a few topics."""
    producers = await system.producers("together", system.workload.topics)
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


TOGETHER = Measure(
    name="together",
    title="Transactions at the same time",
    take=together,
    axis="transactions at a time",
    sizes=lambda workload: workload.together,
    views=(
        View(
            "transactions a second",
            {"rate": "rate"},
            "How many transactions of one message each begin, end and take effect in a second.",
        ),
        View(
            "ledger entries per transaction",
            {"entries": "entries"},
            "Entries that each of them appends, the message included; batches share them when many run at a time.",
            compared=False,
        ),
    ),
    plot=Plot("lines", {"rate": "rate"}, "transactions per second (1/s)"),
)
