"""What the metadata store adds to the database."""

from __future__ import annotations

from rig import Found, Run, interleaved, make_schema, p50, raw, timed

from figures.ending import raw_update
from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, open_metadata_store


async def put_over_raw_update(run: Run) -> list[Found]:
    """p50 of one put over p50 of one autocommit UPDATE with a version check."""
    ratios = []
    await make_schema(run.url("raw"))
    store = await open_metadata_store(run.url("put"), SystemEnvironment(), MetadataOptions())
    key = Key("/bench")
    await store.put(Put(key, b"", Expect.ABSENT))
    with raw(run.directory / "raw.db") as connection:
        update = raw_update(connection)
        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            took, raw_took = await interleaved(
                run.size(200, 20), lambda: timed(store.put(Put(key, b"x" * 180, Expect.ANY))), update
            )
            ratios.append(p50(took) / p50(raw_took))
    await store.close()
    return [Found("put, p50 / raw UPDATE with a version check", tuple(ratios))]
