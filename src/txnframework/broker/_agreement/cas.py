"""Changing one record by compare-and-set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Expected, Key, Put, Record

ATTEMPTS_MAX = 1_000
"""Each failed attempt means that somebody else succeeded; the bound only keeps a defect from turning into a spin."""

Decide = Callable[[Record | None], Awaitable[Put | None]]


async def change(store: IMetadataStore, key: Key, decide: Decide) -> None:
    """
    Read the record, let ``decide`` say what to write (None: it is as it should be), write it, or begin again.

    ``decide`` may look at other records: it sees them as they are after this one was read, and what it decides is
    written only if this one stayed as it was. It must recognise its own effect, or bear repeating: after a conflict
    or an unknown outcome it is asked again with what stands there then.

    :raises Unavailable: it changed too often in between; what was read last stands.
    :raises OutcomeUnknown: the store went away behind a write whose outcome is not known.
    """
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            write = await decide(await store.get(key))
        except Unavailable as error:
            if unknown is None:
                raise
            # Passed on as it is, it would say that nothing was changed.
            raise OutcomeUnknown(f"record {key.path} may have changed: {unknown}") from error
        if write is None:
            return
        try:
            await store.put(write)
        except VersionMismatch:
            continue
        except OutcomeUnknown as error:
            unknown = error
            continue
        except Unavailable as error:
            if unknown is None:
                raise
            raise OutcomeUnknown(f"record {key.path} may have changed: {unknown}") from error
        return
    raise Unavailable(f"record {key.path} changed {ATTEMPTS_MAX} times while it was being changed")


def version_of(record: Record | None) -> Expected:
    """Return what a write expects that is decided upon ``record``."""
    return Expect.ABSENT if record is None else record.version
