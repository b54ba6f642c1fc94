"""Agreement between hosts: compare-and-set on records, leases and elections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.errors import LeaseHeld, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Expected, IndexRange, Key, KeyRange, Put, Record
from txnframework.model.paths import lease_of, leases_range
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed

ATTEMPTS_MAX = 1_000
"""Each failed attempt means that somebody else succeeded; the bound only keeps a defect from turning into a spin."""

Decide = Callable[[Record | None], Awaitable[Put | None]]


async def update_record(store: IMetadataStore, key: Key, decide: Decide) -> None:
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


def expected_version(record: Record | None) -> Expected:
    """Return what a write expects that is decided upon ``record``."""
    return Expect.ABSENT if record is None else record.version


PAGE_RECORDS = 500


async def wait_until_free(store: IMetadataStore, lease: Key) -> None:
    """Wait until nobody holds a lease; somebody else may be quicker to take it."""
    watch = await store.watch(lease)
    try:
        while await store.get(lease) is not None:
            await watch.changed()
    finally:
        await watch.close()


async def held_leases(store: IMetadataStore, prefix: str) -> dict[str, Record]:
    """Return the leases whose names begin with ``prefix``, by name in the order of their keys: one for each holder."""
    found: dict[str, Record] = {}
    left: KeyRange | IndexRange | None = leases_range(prefix)
    while isinstance(left, KeyRange):
        page = await store.scan(left, PAGE_RECORDS)
        found.update({lease_of(record.key.path): record for record in page.records})
        left = page.resume
    return found


class Election:
    """
    Holds one lease, or waits until it is free; ``elected`` is called each time this host gets it.

    It saves work and is no guarantee: a host that was paused believes itself elected for a while when another is.
    """

    def __init__(self, store: IMetadataStore, environment: Environment, name: str, elected: Callable[[], None]) -> None:
        self.won = False
        """Whether this host is elected, as far as it knows."""
        self._store = store
        self._name = name
        self._elected = elected
        self._work = BackgroundTask(lambda: repeat_until_closed(self._stand, environment))

    def start(self) -> None:
        """Stand from now on; once is enough."""
        self._work.start()

    async def stop(self) -> None:
        """Stand no more; the lease is free when the store is closed, if not before."""
        self.won = False
        await self._work.stop()

    async def _stand(self) -> None:
        """Wait until the lease was won and lost again."""
        try:
            lease = await self._store.acquire_lease(self._name, self._store.session)
        except LeaseHeld as held:
            await wait_until_free(self._store, held.key)
            return
        self.won = True
        try:
            self._elected()
            await lease.lost()
        finally:
            self.won = False
