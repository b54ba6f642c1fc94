"""How a host learns what is switched: one watch for all of its logs of a kind."""

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
"""How long what could not be read is left alone."""


@dataclass(eq=False, slots=True)
class Follower:
    """One log, what its configuration says, and what is to be told when something else holds."""

    log: Scope
    configured: bool
    tell: Callable[[bool], None]


class FollowedSwitches:
    """
    What is switched of one kind of log, as a host knows it; watched while somebody follows.

    A host hears of a change soon, not at once: until then it goes on as before, and both sorts of entries are read.
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
        Tell a follower what holds, before this returns and whenever it changes, until ``leave``.

        :raises Corrupt: a switch cannot be read, so nobody knows how the log is to be written.
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
        """Tell it nothing more; may be repeated."""
        async with self._turn:
            self._followers.discard(follower)
            if not self._followers and self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                self._watching = None

    def _tell(self, follower: Follower) -> None:
        follower.tell(self._switches.decide(follower.log, configured=follower.configured).enabled)

    async def _watch(self, watch: IWatch) -> None:
        """Read again after every change; what cannot be read now leaves everything as it is."""
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
    What is followed of one kind through each opening of a metadata store, as long as somebody has it.

    A host has one, and opens a pending-ack store for each subscription: all of them share a watch.
    """

    def __init__(self, kind: LogKind) -> None:
        self._kind = kind
        self._followed: WeakValueDictionary[IMetadataStore, FollowedSwitches] = WeakValueDictionary()

    def of(self, store: IMetadataStore, environment: Environment) -> FollowedSwitches:
        """Return what is followed through this opening of the store."""
        found = self._followed.get(store)
        if found is None:
            found = self._followed[store] = FollowedSwitches(store, environment, self._kind)
        return found
