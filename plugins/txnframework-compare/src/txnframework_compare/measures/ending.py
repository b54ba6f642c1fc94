"""Duration of ending a transaction, by the number of its topics."""

from __future__ import annotations

import asyncio
from typing import Final

from txnframework import Transaction
from txnframework_compare.measures._measure import Figure, Measure, Plot, View
from txnframework_compare.measures._timing import median, timed_ms
from txnframework_compare.system import System

PAUSE_S: Final = 0.02
"""The pause between a transaction's sends and its end, so that work triggered by the sends is finished."""


async def ending(system: System, participants: int) -> tuple[Figure, ...]:
    """
    Write to ``participants`` topics in a transaction and time the call that ends it; commits and aborts alternate.
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
        View(
            "commit, ms",
            {"commit": "commit"},
            "How long the call of commit takes after a transaction wrote to so many topics.",
        ),
        View("abort, ms", {"abort": "abort"}, "The same for the call of abort."),
    ),
    plot=Plot("lines", {"commit": "commit"}, "duration of the call of commit (ms)"),
)
