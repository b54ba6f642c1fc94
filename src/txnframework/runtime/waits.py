"""Time limits for what happens outside this process."""

from __future__ import annotations

import asyncio
from typing import Any

_LATE_S = 0.1


async def is_done_within(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """
    Return whether ``future`` is done after at most ``timeout_s`` of a running event loop; it is not cancelled.

    A timer that fires too late shows that the loop was held up, or the process. What arrived meanwhile is read only
    then, so the wait begins again.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    await asyncio.wait({future}, timeout=timeout_s)
    if not future.done() and loop.time() > until_s + _LATE_S:
        await asyncio.wait({future}, timeout=timeout_s)
    return future.done()
