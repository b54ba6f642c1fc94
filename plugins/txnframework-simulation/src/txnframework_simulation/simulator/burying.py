"""Letting go of coroutines that were left where they stood."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Iterable
from typing import Any

ATTEMPTS_MAX = 1_000
"""A ``finally`` that awaits refuses to be closed; each attempt gets it past one such await."""


def bury(tasks: dict[Any, None], generators: Iterable[AsyncGenerator[Any, Any]]) -> None:
    """
    Close the coroutines of ``tasks``, which grows by what they start meanwhile, and what ``generators`` await.

    The loop takes nothing up any more, so whatever the ``finally`` blocks try comes to nothing.
    """
    while tasks:
        task, _ = tasks.popitem()
        _close(task.get_coro())
    for generator in generators:
        awaited = getattr(generator, "ag_await", None)
        if inspect.iscoroutine(awaited):
            _close(awaited)


def _close(coroutine: Any) -> None:
    """Close a coroutine from the inside out: one that awaits again where it is closed would leave the inner ones."""
    for _ in range(ATTEMPTS_MAX):
        innermost = _innermost(coroutine)
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            innermost.close()
        if innermost is coroutine and coroutine.cr_frame is None:
            return


def _innermost(coroutine: Any) -> Any:
    """Return the coroutine at the end of a chain of awaits that is not over."""
    while inspect.iscoroutine(inner := coroutine.cr_await) and inner.cr_frame is not None:
        coroutine = inner
    return coroutine
