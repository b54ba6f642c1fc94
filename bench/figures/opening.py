"""Opening a segment costs what is open now, not what has happened before."""

from __future__ import annotations

import time

from history import History, make_history
from rig import Found, Run, Side, Target, interleaved, opened, p50, timed

FEW = 100


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
