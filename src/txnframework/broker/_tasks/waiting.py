"""Waiting for the first of several things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def first_of(*waits: Awaitable[object]) -> int:
    """
    Return which of these came first (the lowest number, if several did); the others are cancelled.

    Raises what the first one raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        came = [task.done() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first = came.index(True)
    tasks[first].result()
    return first
