"""Leases by which the commands copy and restore exclude each other, and the look for other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from txnframework.broker.coordination import held_leases
from txnframework.errors import LeaseHeld, Unavailable
from txnframework.interfaces import ILease, IMetadataStore
from txnframework.runtime.tasks import start_task

T = TypeVar("T")
COPY, RESTORE = "copy", "restore"


async def require_alone(metadata: IMetadataStore, command: str = COPY) -> ILease:
    """
    Exclude another such command, and refuse while a lease shows that another process has the store open.

    Return the lease, which has the name of the command.

    :raises Unavailable: there is such a lease.
    """
    doing = "restoring" if command == RESTORE else "copying"
    try:
        lease = await metadata.acquire_lease(command, metadata.session)
    except LeaseHeld as held:
        raise Unavailable(
            f"another process is {doing} {metadata.identity!r}; wait until it has finished, or, if it was killed, until"
            " its session has expired"
        ) from held
    await require_no_others(metadata, command)
    return lease


async def require_no_others(metadata: IMetadataStore, command: str = COPY) -> None:
    """
    Refuse while a lease shows that another process has the store open.

    :raises Unavailable: there is such a lease.
    """
    others = [name for name in await held_leases(metadata, "") if name != command]
    if others:
        raise Unavailable(
            f"another process has {metadata.identity!r} open: it holds the lease {others[0]!r}; stop it and repeat"
            " this; if it was killed, or ran only when a backup was taken, wait until its session has expired"
        )


async def while_held(leases: Sequence[ILease], work: Coroutine[Any, Any, T]) -> T:
    """
    Return the result of the work, and stop it as soon as a lease is lost.

    :raises Unavailable: a lease was lost before the work was done.
    """
    running = start_task(work)
    lost = [start_task(lease.lost()) for lease in leases]
    try:
        await asyncio.wait((running, *lost), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Unavailable("the session of this copy has expired, and another process may complete it; repeat this")
        return await running
    finally:
        for task in (running, *lost):
            task.cancel()
        await asyncio.gather(running, *lost, return_exceptions=True)
