"""The delay after which one process notices another's commits in SQLite, which sends no notifications."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

from txnframework.model import Key
from txnframework.testing import VirtualEnvironment
from txnframework_sql import MetadataOptions, open_metadata_store

Start = Callable[..., "subprocess.Popen[str]"]


def test_watch_is_as_late_as_poll_ms_says(tmp_path: Path, start: Start) -> None:
    """Another process's commit is noticed after ``poll_ms``, and not polled for before."""
    url = f"sqlite:///{tmp_path}/txn.db"

    async def check() -> None:
        environment = VirtualEnvironment()
        store = await open_metadata_store(url, environment, MetadataOptions(poll_ms=300))
        process = start("put", url, "/a")
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch = await store.watch(Key("/a"))
        waiting = asyncio.create_task(watch.changed())
        # The first look comes before this read, and the next one in 300 ms.
        await asyncio.sleep(0)
        await store.get(Key("/a"))
        process.stdin.write("\n")
        process.stdin.flush()
        process.communicate(timeout=240)
        await environment.advance(299)
        assert await store.get(Key("/a")) is not None
        assert not waiting.done()
        await environment.advance(1)
        async with asyncio.timeout(60):
            await waiting
        await store.close()

    asyncio.run(check())
