"""Letting go while an error may be on its way, and what is said to whoever comes after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.broker import Host
from txnframework.errors import Closed, TxnFrameworkError


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


def require_open(host: Host) -> None:
    """Refuse whoever goes on after the client was closed."""
    if host.closed:
        raise client_closed(host)


def client_closed(host: Host) -> Closed:
    """Return what is said, whatever it was that noticed it, about a client that was closed."""
    return Closed(
        f"the client of {host.stores} was closed when its 'with' block ended, and with it all that it made: "
        "open another"
    )
