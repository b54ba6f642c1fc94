"""Following the stored switches: one watch for all logs of a kind on a host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.interfaces import IMetadataStore, IWatch
from txnframework.runtime.backoff import Backoff
from txnframework_legacy.batching.switches import LogKind, Scope, Switches, load_switches, switches_range

RETRY_DELAY_MS = 1_000
"""The wait before switches that could not be read are read again."""


@dataclass(eq=False, slots=True)
class Follower:
    """One log, whether its configuration enables batching, and the callback for changes."""

    log: Scope
    configured: bool
    tell: Callable[[bool], None]


class FollowedSwitches:
    """
    The switches of one kind of log, as this host has read them; watched while there are followers.

    A host learns of a change soon, not at once. Until then it writes as before; both forms of entries are readable.
    """

    def __init__(self, store: IMetadataStore, environment: Environment, kind: LogKind) -> None:
        self.kind = kind
        self._store = store
        self._backoff = Backoff(environment, RETRY_DELAY_MS, RETRY_DELAY_MS)
        self._switches = Switches({})
        self._followers: set[Follower] = set()
        self._watching: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def follow(self, follower: Follower) -> None:
        """
        Report the current decision to a follower before this returns, and each later change, until ``leave``.

        :raises Corrupt: a switch cannot be read, so the decision for the log is unknown.
        """
        async with self._turn:
            if self._watching is None:
                watch = await self._store.watch(switches_range(self.kind))
                try:
                    self._switches = await load_switches(self._store, self.kind)
                except BaseException:
                    await watch.close()
                    raise
                self._watching = asyncio.ensure_future(self._watch(watch))
            self._followers.add(follower)
            self._tell(follower)

    async def leave(self, follower: Follower) -> None:
        """Stop reporting to a follower. Idempotent."""
        async with self._turn:
            self._followers.discard(follower)
            if not self._followers and self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                self._watching = None

    def _tell(self, follower: Follower) -> None:
        follower.tell(self._switches.decide(follower.log, configured=follower.configured).enabled)

    async def _watch(self, watch: IWatch) -> None:
        """Read the switches after every change; while they cannot be read, the last known ones apply."""
        try:
            while True:
                await watch.changed()
                while not await self._look():
                    await self._backoff.pause(1)
        except Closed:
            return
        finally:
            await watch.close()

    async def _look(self) -> bool:
        try:
            self._switches = await load_switches(self._store, self.kind)
        except Closed:
            raise
        except TxnFrameworkError:
            return False
        for follower in tuple(self._followers):
            self._tell(follower)
        return True


class SharedSwitches:
    """
    The followed switches of one kind, shared by all users of one opened metadata store.

    A host opens its metadata store once, and a pending-ack store for each subscription. All of these share one watch.
    """

    def __init__(self, kind: LogKind) -> None:
        self._kind = kind
        self._followed: WeakValueDictionary[IMetadataStore, FollowedSwitches] = WeakValueDictionary()

    def of(self, store: IMetadataStore, environment: Environment) -> FollowedSwitches:
        """Return the followed switches of this opened store."""
        found = self._followed.get(store)
        if found is None:
            found = self._followed[store] = FollowedSwitches(store, environment, self._kind)
        return found
