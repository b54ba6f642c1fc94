"""A client's connection to its space: where it waits, where a test can cut it, and which changes wake its watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from zope.interface import implementer

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IAppendedWatch, IValueWatch, IWatch
from txnframework.model import LedgerEntry

T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]
"""Called wherever a real store would wait for the network; a simulation decides there which task continues."""


Locked = Callable[[], asyncio.Event | None]
"""Returns an event that is set when a lock is released that a step waits for, or None if there is none."""


async def yield_once() -> None:
    """Let every other ready task run once."""
    await asyncio.sleep(0)


class Link:
    """
    Runs steps on a space like a connection: wait, apply the whole step atomically, wait for the reply.

    While the link is cut, the first write is applied and its reply is lost; every other step fails.

    :param locked: each write waits until this returns None, unless it names something else.
    """

    def __init__(self, name: str, pause: Pause, locked: Locked = lambda: None) -> None:
        self.name = name
        self.is_closed = False
        self.is_cut = False
        self.pause = pause
        self._locked = locked
        self._lost_reply = False

    async def read(self, step: Callable[[], T], locked: Locked | None = None) -> T:
        """
        Return the result of ``step``; raise Closed or Unavailable if the reply cannot arrive.

        :param locked: the step waits until this returns None.
        """
        if self.is_closed:
            raise self._closed()
        await self.pause()
        while locked is not None and (released := locked()) is not None:
            await released.wait()  # nothing runs between the last look and the step
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        answer = step()
        await self.pause()
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        return answer

    async def write(self, step: Callable[[], T], locked: Locked | None = None) -> T:
        """
        Return the result of ``step``; raise OutcomeUnknown if it was sent and the reply cannot arrive.

        :param locked: the step waits until this returns None.
        """
        if self.is_closed:
            raise self._closed()
        if self.is_cut and self._lost_reply:
            raise Unavailable(f"{self.name} is cut off")
        await self.pause()
        while (released := (locked or self._locked)()) is not None:
            await released.wait()  # nothing runs between the last look and the step
        if self.is_closed:
            raise OutcomeUnknown(f"{self.name} was closed while a write was in flight")
        answer = step()
        await self.pause()
        if self.is_closed or self.is_cut:
            self._lost_reply = self.is_cut
            raise OutcomeUnknown(f"{self.name}: the reply to a write was lost")
        return answer

    def cut(self) -> None:
        """Lose the next reply, then lose the connection until ``restore``."""
        self.is_cut = True
        self._lost_reply = False

    def restore(self) -> None:
        """Restore the connection."""
        self.is_cut = False

    def close(self) -> None:
        """Close the link; may be repeated."""
        self.is_closed = True

    def require_open(self) -> None:
        """Raise Closed if the link was closed."""
        if self.is_closed:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"{self.name} was closed")

    def _unreachable(self) -> Closed | Unavailable:
        return self._closed() if self.is_closed else Unavailable(f"{self.name} is cut off")


C = TypeVar("C")
W = TypeVar("W", bound="Watch")  # type: ignore[type-arg]

Grown = tuple[LedgerEntry, ...] | None
"""A change of a tail: the appended entries if nothing else changed, otherwise None."""

ENTRIES_TOLD_MAX = 128
"""The most entries that a watch reports."""


@implementer(IWatch)
class Watch(Generic[C]):
    """
    A watch on the changes for which ``concerns`` is true, or on all changes if it is None.

    It receives nothing while ``link`` is cut.
    """

    def __init__(self, watches: Watches[C], concerns: Callable[[C], bool] | None, link: Link | None = None) -> None:
        self.concerns = concerns
        self.link = link
        self._watches = watches
        self._may_have_changed = False
        self.is_closed = False
        self._woken = asyncio.Event()

    async def changed(self) -> None:
        """Return once anything may have changed; see IWatch."""
        while not self._may_have_changed:
            if self.is_closed:
                break
            self._woken.clear()
            await self._woken.wait()
        if self.is_closed:
            raise Closed("the watch was closed")
        self._may_have_changed = False

    async def close(self) -> None:
        """Close the watch; may be repeated."""
        self.end()

    def wake(self, changes: Sequence[C] | None = None) -> None:  # noqa: ARG002 - for those that tell
        """Make ``changed`` return for these changes; None: changes may have been missed."""
        self._may_have_changed = True
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


@implementer(IAppendedWatch)
class TailWatch(Watch[Grown]):
    """A watch on the tail of a ledger that reports the appended entries."""

    def __init__(self, watches: Watches[Grown], link: Link) -> None:
        super().__init__(watches, None, link)
        self.appended: tuple[LedgerEntry, ...] | None = None
        self._coming: list[LedgerEntry] | None = []

    async def changed(self) -> None:
        """Return once the tail may have changed; see IWatch."""
        await super().changed()
        coming, self._coming = self._coming, []
        self.appended = None if coming is None else tuple(coming)

    def wake(self, changes: Sequence[Grown] | None = None) -> None:
        """Make ``changed`` return for these changes; None: changes may have been missed."""
        for grown in (None,) if changes is None else changes:
            if grown is None or self._coming is None or len(self._coming) + len(grown) > ENTRIES_TOLD_MAX:
                self._coming = None
            else:
                self._coming += grown
        super().wake()


class Valued(Protocol):
    """A change of a record: its place, and the value that was written, or None if it was removed."""

    @property
    def path(self) -> str: ...

    @property
    def partition(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...


V = TypeVar("V", bound=Valued)


@implementer(IValueWatch)
class RecordWatch(Watch[V]):
    """A watch on the record at one place that reports its new value."""

    def __init__(self, watches: Watches[V], place: tuple[str, str], link: Link | None = None) -> None:
        super().__init__(watches, lambda change: (change.path, change.partition) == place, link)
        self.place = place
        self.value: bytes | None = None
        self._coming: bytes | None = None

    async def changed(self) -> None:
        """Return once the record may have changed; see IValueWatch."""
        await super().changed()
        self.value, self._coming = self._coming, None

    def wake(self, changes: Sequence[V] | None = None) -> None:
        """Make ``changed`` return for these changes; None: changes may have been missed."""
        self._coming = None if changes is None else changes[-1].value
        super().wake()


class Watches(Generic[C]):
    """The armed watches of one place."""

    def __init__(self) -> None:
        # A dict keeps the order of arming, so that a run can be repeated exactly.
        self._armed: dict[Watch[C], None] = {}

    def arm(self, concerns: Callable[[C], bool]) -> Watch[C]:
        """Return a watch that every later change that concerns it wakes."""
        return self.add(Watch(self, concerns))

    def add(self, watch: W) -> W:
        """Wake ``watch`` from now on, and return it."""
        self._armed[watch] = None
        return watch

    def remove(self, watch: Watch[C]) -> None:
        """Remove a watch; an unknown one is ignored."""
        self._armed.pop(watch, None)

    def notify(self, changes: Iterable[C]) -> None:
        """Wake every watch that one of the changes concerns."""
        told = tuple(changes)
        for watch in tuple(self._armed):
            if watch.link is not None and watch.link.is_cut:
                continue
            if concerning := told if watch.concerns is None else tuple(filter(watch.concerns, told)):
                watch.wake(concerning)

    def wake_all(self) -> None:
        """Wake every watch, as if changes may have been missed."""
        for watch in tuple(self._armed):
            watch.wake()

    def __len__(self) -> int:
        return len(self._armed)
