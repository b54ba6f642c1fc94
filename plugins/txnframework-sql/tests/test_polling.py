"""The delay after which one process notices another's commits in SQLite, which sends no notifications."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

from txnframework.model import Key, KeyRange
from txnframework.testing import VirtualEnvironment
from txnframework_sql import MetadataOptions, open_metadata_store

Start = Callable[..., "subprocess.Popen[str]"]


async def test_watch_is_as_late_as_poll_ms_says(tmp_path: Path, start: Start) -> None:
    """Another process's commit is noticed after ``poll_ms``, and not polled for before."""
    url = f"sqlite:///{tmp_path}/txn.db"

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


async def test_many_commits_wake_the_watch_of_a_range_once(tmp_path: Path) -> None:
    """
    A poll cannot compare a range, so each commit of others would make the watcher read it again.

    The first commit wakes it at the next poll, and those that follow it together some polls later; none is missed.
    """
    others = KeyRange("/lease/", "/lease0")

    environment = VirtualEnvironment()
    store = await open_metadata_store(f"sqlite:///{tmp_path}/txn.db", environment, MetadataOptions(poll_ms=20))
    watch = await store.watch(others)
    woken = 0

    async def follow() -> None:
        nonlocal woken
        while True:
            await watch.changed()
            woken += 1

    async def poll() -> None:
        await environment.advance(20)
        for _ in range(3):  # as many reads as a poll makes, so that it has ended
            await store.get(Key("/a"))

    following = asyncio.create_task(follow())
    await poll()
    other = sqlite3.connect(tmp_path / "txn.db")
    seen = []
    for number in range(21):
        with other:
            other.execute("INSERT INTO counters (name, value) VALUES (?, 0)", (f"unused {number}",))
        await poll()
        seen.append(woken)
    assert seen == [1] * 10 + [2] * 10 + [3]
    with other:
        other.execute("INSERT INTO counters (name, value) VALUES ('unused', 0)")
    for _ in range(20):
        await poll()
    assert woken == 4
    following.cancel()
    other.close()
    await store.close()
