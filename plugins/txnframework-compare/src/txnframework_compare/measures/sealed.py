"""Ending a transaction after one of its topics was sealed, as in a split."""

from __future__ import annotations

import time
from typing import Final

from txnframework.errors import EndTransactionTimeout
from txnframework_compare.measures._measure import Figure, Measure, Plot, Unable, View
from txnframework_compare.system import System

END_TIMEOUT_MS: Final = 400
"""A short timeout: a family that cannot end such a transaction retries until the next retry would exceed it."""


async def sealed(system: System, _: int) -> tuple[Figure, ...]:
    """Write to two topics, seal one of them, and commit; read both after all reachable participants have settled."""
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
    commit: float | Unable
    try:
        await txn.commit()
        commit = (time.perf_counter() - begun_s) * 1e3
    except EndTransactionTimeout as error:
        commit = Unable(f"EndTransactionTimeout, end_timeout_ms is {error.timeout_ms}")
    took_ms = (time.perf_counter() - begun_s) * 1e3
    if isinstance(commit, Unable):
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
        View(
            "one of two topics is sealed before the commit",
            {"commit": "commit, ms", "took": "took, ms", "readable": "readable of 2"},
            "Whether commit succeeds, when its call returned, and how many of its two messages can be read then.",
            compared=False,
        ),
    ),
    plot=Plot("dots", {"took": "until the call returned"}, "until the call of commit returned (ms)"),
)
