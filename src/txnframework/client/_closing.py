"""Letting go while an error may be on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.errors import TxnFrameworkError


async def close_after(error: BaseException | None, close: Callable[[], Awaitable[None]]) -> None:
    """
    Close; where that fails while ``error`` is on its way, ``error`` goes on, with a note of it.

    A store that is away, for instance, makes both fail, and the first one says what the program was doing. What could
    not be let go of runs out with its session.
    """
    try:
        await close()
    except TxnFrameworkError as failed:
        if error is None:
            raise
        error.add_note(f"closing failed as well: {failed}")
