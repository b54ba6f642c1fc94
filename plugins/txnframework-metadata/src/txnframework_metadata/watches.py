"""Waiting for the first of several watches, and closing them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from txnframework.interfaces import IWatch
from txnframework.runtime.tasks import start_task


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """
    Return when the first of ``waits`` completes, and cancel the others; raise the exception of a completed one.

    A watch whose wait is cancelled stays armed. If it fired at the same moment, its hint is lost. The caller must
    therefore read everything again, not only the data that the first hint names.
    """
    tasks = [start_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_all(watches: Iterable[IWatch]) -> None:
    """Close all watches."""
    for watch in watches:
        await watch.close()
