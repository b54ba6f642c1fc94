"""The time until another process receives the messages of a committed transaction."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from measurement import Found, Run, Target, interleaved, microseconds, opened, p50

RECEIVER = Path(__file__).parents[1] / "receiver.py"
TOPIC = "t"


async def visible_elsewhere(run: Run) -> list[Found]:
    """
    p99 of the time from the call of ``commit`` until a consumer in another process has the message.

    Over p50 of one raw update with a version check: one durable round trip. Linux gives processes of one machine the
    same monotonic clock.
    """
    samples, ratios, ours, confirmed, theirs = run.size(200, 20), [], [], [], []
    config = run.backend.config("visible")
    async with run.backend.raw_update() as update, opened(config) as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer, _receiving(config) as receiver:
            at_commit_ns = 0

            async def visible() -> float:
                nonlocal at_commit_ns
                txn = client.transaction()
                await txn.begin()
                await producer.send(b"x" * 200, txn=txn)
                begun_ns = time.monotonic_ns()
                await txn.commit()
                at_commit_ns = time.monotonic_ns()
                received_ns = int(await receiver.readline())
                confirmed.append((received_ns - at_commit_ns) / 1e9)
                return (received_ns - begun_ns) / 1e9

            # A server that has run for a while is measured, because Java compiles frequent code.
            await interleaved(samples, visible, update)
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                took, raw_took = await interleaved(samples, visible, update)
                ours.append(_p99(took))
                theirs.append(p50(raw_took))
                ratios.append(ours[-1] / theirs[-1])
    notes = {
        "p99_us": microseconds(p50(ours)),
        "p99_after_confirmation_us": microseconds(_p99(confirmed)),
        "p50_after_confirmation_us": microseconds(p50(confirmed)),
        "raw_p50_us": microseconds(p50(theirs)),
    }
    what = "commit to received in another process, p99 / raw update with a version check, p50"
    return [Found(what, tuple(ratios), Target(10.0), notes)]


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


@asynccontextmanager
async def _receiving(config: dict[str, object]) -> AsyncIterator[asyncio.StreamReader]:
    """Run a consumer in a separate process; yield its output, the time of each message."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, RECEIVER, json.dumps(config), TOPIC, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process.stdout
    finally:
        process.terminate()
        await process.wait()
