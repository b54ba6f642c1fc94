"""
Watches: one recursive watch at the servers for each place that somebody watches, however many do.

A recursive watch stays until it is taken back or the connection is lost. When there is a connection again every place
is armed before anything is read, and then everybody is woken, for whatever was missed between. A single record, below
whose node nothing stands, is watched in another way; see ``_record_watch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from zope.interface import implementer

from txnframework.errors import Closed, Unavailable
from txnframework.interfaces import IWatch
from txnframework_zookeeper._record_watch import RecordWatch
from txnframework_zookeeper.connection._errors import LOST, translated
from txnframework_zookeeper.connection._link import Session
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.connection._zookeeper import ZooKeeper

Concerns = Callable[[str], bool]
"""Whether a change of the node at a path, without the chroot, may be one of what is watched."""


@implementer(IWatch)
class Watch:
    """An armed watch on what is kept at some places."""

    def __init__(self, watches: Watches, places: tuple[str, ...], concerns: Concerns) -> None:
        self.places = places
        self.concerns = concerns
        self._watches = watches
        self._woken = asyncio.Event()
        self._is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        await self._woken.wait()
        if self._is_closed:
            raise Closed("the watch was closed")
        self._woken.clear()

    async def close(self) -> None:
        """Give the watch back; a waiting ``changed`` raises Closed; may be repeated."""
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return."""
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        if not self._is_closed:
            self._is_closed = True
            self._woken.set()
            self._watches.remove(self)


class Watches:
    """The armed watches of one client."""

    def __init__(self, zookeeper: ZooKeeper, places_max: int) -> None:
        self._zookeeper = zookeeper
        self._places_max = places_max
        # Dicts, so that watches are woken in the order in which they were armed.
        self._armed: dict[str, dict[Watch | RecordWatch, None]] = {}
        # Those of records of which the servers will tell the next change.
        self._set: set[str] = set()
        self._is_closed = False
        zookeeper.listen(self)

    async def arm(self, places: tuple[str, ...], concerns: Concerns) -> Watch:
        """
        Return a watch that no change from now on escapes, of nodes at or below one of the places.

        :raises Unavailable: as many places are watched as may be.
        """
        self._require_open()
        watch = Watch(self, places, concerns)
        # Whoever begins to watch a place that is watched asks again: the first may not have been answered yet.
        self._enter(watch)
        try:
            await self._until_armed(places)
            self._require_open()
        except BaseException:
            watch.end()
            raise
        return watch

    async def arm_record(self, node: str, value_of: Callable[[Node], bytes | None]) -> RecordWatch:
        """Return a watch of the node of a record, which has none below it; otherwise as ``arm``."""
        self._require_open()
        watch = RecordWatch(self, self._zookeeper, node, value_of)
        self._enter(watch)
        try:
            await watch.begin()
            self._require_open()
        except BaseException:
            watch.end()
            raise
        return watch

    def is_set(self, place: str) -> None:
        """The servers will tell of the next change of this place."""
        self._set.add(place)

    def came_set(self, place: str) -> None:
        """A look that arms has been answered: it is kept, or taken back where nobody watches the place any more."""
        if place in self._armed:
            self._set.add(place)
        elif self._zookeeper.link.is_connected:
            self._zookeeper.disarm(place)

    def remove(self, watch: Watch | RecordWatch) -> None:
        """Forget a watch; an unknown one is fine."""
        for place in watch.places:
            watching = self._armed.get(place, {})
            watching.pop(watch, None)
            if not watching and self._armed.pop(place, None) is not None:
                is_armed = isinstance(watch, Watch) or place in self._set
                self._set.discard(place)
                if is_armed and self._zookeeper.link.is_connected:
                    self._zookeeper.disarm(place)

    def session_became(self, state: Session) -> None:
        """Arm everything and then wake everybody, when there is a connection again."""
        if state in (Session.NEW, Session.BACK):
            self._set.clear()
            for place, watching in self._armed.items():
                if any(isinstance(watch, Watch) for watch in watching):
                    self._zookeeper.arm(place)
                for watch in watching:
                    watch.wake()

    def node_changed(self, path: str) -> None:
        """Wake whom a change may concern."""
        place = path = self._zookeeper.without_root(path)
        self._set.discard(path)
        while True:
            for watch in self._armed.get(place, ()):
                if watch.concerns(path):
                    watch.wake()
            if place == "/":
                return
            place = place.rpartition("/")[0] or "/"

    def close(self) -> None:
        """End every watch; may be repeated."""
        self._is_closed = True
        for watching in tuple(self._armed.values()):
            for watch in tuple(watching):
                watch.end()

    def _enter(self, watch: Watch | RecordWatch) -> None:
        if len(self._armed.keys() | set(watch.places)) > self._places_max:
            raise Unavailable(
                f"{self._zookeeper.shown_url}: {self._places_max} places are watched already;"
                " give metadata.options.watches_max a higher value"
            )
        for place in watch.places:
            self._armed.setdefault(place, {})[watch] = None

    def _require_open(self) -> None:
        self._zookeeper.link.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._zookeeper.shown_url} is being closed, and its watches with it")

    async def _until_armed(self, places: tuple[str, ...]) -> None:
        """Arm, again after each lost connection; the error of the first place that cannot be."""
        left = places
        while left:
            await self._zookeeper.link.until_connected()
            answers = await asyncio.gather(*(self._zookeeper.arm(place) for place in left))
            for place, error in zip(left, answers, strict=True):
                if isinstance(error, Exception) and not isinstance(error, LOST):
                    raise translated(error, self._zookeeper.shown_url, f"watch {place}") from error
            left = tuple(place for place, error in zip(left, answers, strict=True) if isinstance(error, LOST))
