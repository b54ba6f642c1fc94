"""The time to open a segment, which depends on open transactions and not on finished ones."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from backend import Side
from history import TOPIC, History, make_history, run_really, write_in_bulk
from measurement import Found, Run, Target, interleaved, opened, p50, timed

FEW = 100
OPEN = 10


async def opening_by_history(run: Run) -> list[Found]:
    """Time to open a segment after 100,000 finished transactions over after 100: committed, collected, some aborted."""
    many = run.size(100_000, 2_000)
    histories = {
        "few": History(FEW),
        "finished": History(many),
        "collected": History(many, collected=True),
        "aborted": History(many, aborted_every=10),
    }
    segments, took_s = {}, {}
    for name, history in histories.items():
        run.progress(f"writing {history.finished:,} transactions: {name}")
        begun = time.perf_counter()
        segments[name] = await make_history(run.backend, name, history)
        took_s[name] = time.perf_counter() - begun

    def opening(name: str) -> Side:
        async def once() -> float:
            async with opened(run.backend.config(name)) as client:
                await client.host.coordinator()
                return await timed(client.host.segment(segments[name]))

        return once

    ratios: dict[str, list[float]] = {name: [] for name in histories if name != "few"}
    few_s = []
    for number in range(run.rounds):
        run.progress(f"round {number + 1} of {run.rounds}")
        few, *others = await interleaved(run.size(7, 3), *map(opening, histories))
        few_s.append(p50(few))
        for name, took in zip(ratios, others, strict=True):
            ratios[name].append(p50(took) / p50(few))
    notes: dict[str, float | str] = {
        "history": "entries, headers and abort records written in bulk, in the shape that real transactions leave"
        " (compared with some that were run); collected: their headers deleted",
        "few_p50_ms": round(p50(few_s) * 1e3, 2),
        "writing_history_s": round(took_s["finished"], 1),
    }
    after = f"/ after {FEW}"
    return [
        Found(f"opening after {many:,} finished {after}", tuple(ratios["finished"]), Target(1.5), notes),
        Found(f"opening after {many:,} collected {after}", tuple(ratios["collected"])),
        Found(f"opening after {many:,} finished, one in ten aborted {after}", tuple(ratios["aborted"]), Target(1.5)),
    ]


async def opening_beside_open(run: Run) -> list[Found]:
    """Time to open a segment on which 10 transactions are open, after 100,000 finished ones over after 100."""
    many = run.size(100_000, 2_000)
    segments: dict[int, str] = {}
    ratios, few_s, many_s = [], [], []
    async with AsyncExitStack() as stack:
        for finished in (FEW, many):
            run.progress(f"writing {finished:,} transactions")
            reserve = {"metadata": {"id_block_size": finished + 1_000}}
            async with opened(run.backend.config(str(finished)), coordinators=reserve) as client:
                await client.create_topic(TOPIC)
                segments[finished] = await run_really(client, History(finished))
                await write_in_bulk(client, segments[finished], History(finished))
            client = await stack.enter_async_context(opened(run.backend.config(str(finished))))
            producer = await client.producer(TOPIC)
            for _ in range(OPEN):
                txn = client.transaction(timeout_ms=3_600_000)
                await txn.begin()
                await producer.send(b"x" * 100, txn=txn)

        def opening(finished: int) -> Side:
            async def once() -> float:
                async with opened(run.backend.config(str(finished))) as client:
                    await client.host.coordinator()
                    return await timed(client.host.segment(segments[finished]))

            return once

        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            few, after_many = await interleaved(run.size(15, 3), opening(FEW), opening(many))
            few_s.append(p50(few))
            many_s.append(p50(after_many))
            ratios.append(many_s[-1] / few_s[-1])
    notes = {"few_p50_ms": round(p50(few_s) * 1e3, 2), "many_p50_ms": round(p50(many_s) * 1e3, 2)}
    what = f"opening beside {OPEN} open transactions, after {many:,} finished / after {FEW}"
    return [Found(what, tuple(ratios), Target(1.5), notes)]
