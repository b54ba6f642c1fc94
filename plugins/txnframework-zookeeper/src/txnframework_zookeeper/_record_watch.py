"""A watch on one record, which brings along what the record became."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import ITellingWatch
from txnframework_zookeeper.connection._errors import LOST, translated
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.connection._zookeeper import ZooKeeper


class Keeper(Protocol):
    """Who keeps the armed watches of a client."""

    def is_set(self, place: str) -> None:
        """The servers will tell of the next change of this place."""

    def came_set(self, place: str) -> None:
        """A look that arms has been answered: it is kept, or taken back where nobody watches the place any more."""

    def remove(self, watch: RecordWatch) -> None:
        """Forget a watch; an unknown one is fine."""


@implementer(ITellingWatch)
class RecordWatch:
    """
    An armed watch on the node of one record; ``value_of`` takes the value out of a node, None if it is not whole there.

    One request reads the node and has its next change told, once. After that whoever waits is told with what another
    look has found, and the next change is asked for when somebody waits again, by a look too: where that finds another
    state than the last one, something has changed in between. So who is interested in a transaction until it has ended
    costs the servers two reads, and a record that changes while nobody waits costs one, however often it does.
    """

    def __init__(
        self, keeper: Keeper, zookeeper: ZooKeeper, node: str, value_of: Callable[[Node], bytes | None]
    ) -> None:
        self.places = (node,)
        self.told: bytes | None = None
        self._keeper = keeper
        self._zookeeper = zookeeper
        self._node = node
        self._value_of = value_of
        self._begun: asyncio.Future[Exception | None] | None = None
        # The number of the transaction that wrote what was seen last; 0: nothing stood there.
        self._seen = 0
        self._waiting = 0
        self._is_armed = self._is_looking = self._looks_again = self._must_tell = self._is_closed = False
        self._woken = asyncio.Event()

    async def begin(self) -> None:
        """Return once it is armed, and holds how the record stands; see ``Watches.arm``."""
        while True:
            await self._zookeeper.link.until_connected()
            self._begun = self._zookeeper.link.loop.create_future()
            self._look(arms=True)
            error = await self._begun
            self._begun = None
            if self._is_closed:
                raise Closed("the watch was closed")
            if error is None:
                return
            if not isinstance(error, LOST):
                raise translated(error, self._zookeeper.shown_url, f"watch {self._node}") from error

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        if not self._woken.is_set():
            self._waiting += 1
            try:
                if not self._is_armed:
                    self._zookeeper.link.require_open()
                    self._look(arms=True)
                await self._woken.wait()
            finally:
                self._waiting -= 1
        if self._is_closed:
            raise Closed("the watch was closed")
        self._woken.clear()

    async def close(self) -> None:
        """Give the watch back; a waiting ``changed`` raises Closed; may be repeated."""
        self.end()

    def concerns(self, path: str) -> bool:
        """Whether a change of a node is one of what is watched."""
        return path == self._node

    def wake(self) -> None:
        """The node has changed, or it may have and nobody told: whoever waits is told what it is by now."""
        self._is_armed = False
        self._must_tell = True
        if self._is_looking:
            self._looks_again = True
        elif self._waiting:
            self._look(arms=False)

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        if not self._is_closed:
            self._is_closed = True
            self._woken.set()
            self._keeper.remove(self)
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)

    def _look(self, *, arms: bool) -> None:
        if self._is_looking:
            return
        self._is_looking, self._looks_again = True, False
        if arms:
            self._keeper.is_set(self._node)
        self._zookeeper.look(self._node, lambda found: self._take(found, arms=arms), arms=arms)

    def _take(self, found: Node | Exception | None, *, arms: bool) -> None:
        """Take what a look has found."""
        self._is_looking = False
        if arms and not isinstance(found, Exception):
            self._keeper.came_set(self._node)
        if self._is_closed:
            return
        if self._begun is not None:
            self._begin_with(found)
        elif isinstance(found, LOST):
            # It is looked at again when there is a connection; if there is one already, it was said meanwhile.
            if self._looks_again and self._waiting:
                self._look(arms=True)
        elif isinstance(found, Exception):
            # Whoever reads the record meets it, too; what it is by then, the next look tells, whatever was seen before.
            self._tell(None)
            self._must_tell = True
        elif self._looks_again or (found is None and not arms):
            # What is not there is told with its making asked for already: afterwards nobody could see that it came and
            # went.
            self._look(arms=True)
        else:
            self._be_armed(is_so=arms)
            self._see(found)

    def _begin_with(self, found: Node | Exception | None) -> None:
        assert self._begun is not None
        error = found if isinstance(found, Exception) else None
        if error is None:
            assert not isinstance(found, Exception)
            self._be_armed(is_so=not self._looks_again)
            self._seen, self.told = (0, None) if found is None else (found.stat.mzxid, self._value_of(found))
        if not self._begun.done():
            self._begun.set_result(error)

    def _be_armed(self, *, is_so: bool) -> None:
        self._is_armed = is_so

    def _see(self, node: Node | None) -> None:
        seen = 0 if node is None else node.stat.mzxid
        if self._must_tell or seen != self._seen:
            self._seen = seen
            self._tell(None if node is None else self._value_of(node))
        elif self._waiting and not self._is_armed:
            self._look(arms=True)

    def _tell(self, value: bytes | None) -> None:
        self.told = value
        self._must_tell = False
        self._woken.set()
