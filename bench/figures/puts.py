"""A put of the metadata store compared with a raw update."""

from __future__ import annotations

from measurement import Found, Run, interleaved, opened, p50, timed

from txnframework.model import Expect, Key, Put


async def put_over_raw_update(run: Run) -> list[Found]:
    """p50 of one put over p50 of one raw update with a version check."""
    ratios = []
    async with run.backend.raw_update() as update, opened(run.backend.config("put")) as client:
        store, key = client.host.metadata, Key("/bench")
        await store.put(Put(key, b"", Expect.ABSENT))
        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            took, raw_took = await interleaved(
                run.size(200, 20), lambda: timed(store.put(Put(key, b"x" * 180, Expect.ANY))), update
            )
            ratios.append(p50(took) / p50(raw_took))
    return [Found("put, p50 / raw update with a version check", tuple(ratios))]
