"""Waiting for the first of several watches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from txnframework.interfaces import IWatch


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """
    Return when the first of ``waits`` is over, and stop the others; raise what a finished one raised.

    A watch whose wait is stopped stays armed. If it fired at the same moment its hint is used up here, so the caller
    reads everything again, not only what the first one hinted at.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_all(watches: Iterable[IWatch]) -> None:
    """Give watches back."""
    for watch in watches:
        await watch.close()
