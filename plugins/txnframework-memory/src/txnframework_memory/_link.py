"""A client's way to its space: where it waits, where a test can cut it off, and which change wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from zope.interface import implementer

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.interfaces import ITellingTailWatch, ITellingWatch, IWatch
from txnframework.model import LedgerEntry

T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]
"""Called wherever a real store would wait for the network; a simulation decides there who goes on."""


async def yield_once() -> None:
    """Let everything else that is ready go first, once."""
    await asyncio.sleep(0)


class Link:
    """
    Runs steps on a space the way a connection would: wait, apply the whole step at once, wait for the reply.

    While it is cut, a write that is sent is applied and its reply is lost; nothing else gets through.
    """

    def __init__(self, name: str, pause: Pause) -> None:
        self.name = name
        self.is_closed = False
        self.is_cut = False
        self._pause = pause
        self._lost_reply = False

    async def read(self, step: Callable[[], T]) -> T:
        """Return what ``step`` returns; Closed or Unavailable if the answer cannot arrive."""
        if self.is_closed:
            raise self._closed()
        await self._pause()
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        answer = step()
        await self._pause()
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        return answer

    async def write(self, step: Callable[[], T]) -> T:
        """Return what ``step`` returns; OutcomeUnknown if it was sent and the answer cannot arrive."""
        if self.is_closed:
            raise self._closed()
        if self.is_cut and self._lost_reply:
            raise Unavailable(f"{self.name} is cut off")
        await self._pause()
        if self.is_closed:
            raise OutcomeUnknown(f"{self.name} was closed while a write was in flight")
        answer = step()
        await self._pause()
        if self.is_closed or self.is_cut:
            self._lost_reply = self.is_cut
            raise OutcomeUnknown(f"{self.name}: the reply to a write was lost")
        return answer

    def cut(self) -> None:
        """Lose the next reply, then reach nothing until ``restore``."""
        self.is_cut = True
        self._lost_reply = False

    def restore(self) -> None:
        """Reach the space again."""
        self.is_cut = False

    def close(self) -> None:
        """Reach nothing any more; may be repeated."""
        self.is_closed = True

    def require_open(self) -> None:
        """Raise Closed if this was closed."""
        if self.is_closed:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"{self.name} was closed")

    def _unreachable(self) -> Closed | Unavailable:
        return self._closed() if self.is_closed else Unavailable(f"{self.name} is cut off")


C = TypeVar("C")
W = TypeVar("W", bound="Watch")  # type: ignore[type-arg]

Grown = tuple[LedgerEntry, ...] | None
"""How a tail changed: by these entries and nothing else; None: otherwise."""

ENTRIES_TOLD_MAX = 128
"""How many entries a watch brings along at most."""


@implementer(IWatch)
class Watch(Generic[C]):
    """A watch on the changes for which ``concerns`` is true; it hears nothing while ``link`` is cut."""

    def __init__(self, watches: Watches[C], concerns: Callable[[C], bool], link: Link | None = None) -> None:
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
        """Give the watch back; may be repeated."""
        self.end()

    def wake(self, changes: Sequence[C] | None = None) -> None:  # noqa: ARG002 - for those that tell
        """Make ``changed`` return, for these changes; None: something may have been missed."""
        self._may_have_changed = True
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


@implementer(ITellingTailWatch)
class TailWatch(Watch[Grown]):
    """A watch on the tail of a ledger, which brings along what was appended."""

    def __init__(self, watches: Watches[Grown], link: Link) -> None:
        super().__init__(watches, lambda _: True, link)
        self.appended: tuple[LedgerEntry, ...] | None = None
        self._coming: list[LedgerEntry] | None = []

    async def changed(self) -> None:
        """Return once the tail may have changed; see IWatch."""
        await super().changed()
        coming, self._coming = self._coming, []
        self.appended = None if coming is None else tuple(coming)

    def wake(self, changes: Sequence[Grown] | None = None) -> None:
        """Make ``changed`` return, for these changes; None: something may have been missed."""
        for grown in (None,) if changes is None else changes:
            if grown is None or self._coming is None or len(self._coming) + len(grown) > ENTRIES_TOLD_MAX:
                self._coming = None
            else:
                self._coming += grown
        super().wake()


class Valued(Protocol):
    """A change of a record: where it stands, and what was written; None: it was removed."""

    @property
    def path(self) -> str: ...

    @property
    def partition(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...


V = TypeVar("V", bound=Valued)


@implementer(ITellingWatch)
class RecordWatch(Watch[V]):
    """A watch on the record at one place, which brings along what it became."""

    def __init__(self, watches: Watches[V], place: tuple[str, str], link: Link | None = None) -> None:
        super().__init__(watches, lambda change: (change.path, change.partition) == place, link)
        self.place = place
        self.told: bytes | None = None
        self._coming: bytes | None = None

    async def changed(self) -> None:
        """Return once the record may have changed; see ITellingWatch."""
        await super().changed()
        self.told, self._coming = self._coming, None

    def wake(self, changes: Sequence[V] | None = None) -> None:
        """Make ``changed`` return, for these changes; None: something may have been missed."""
        self._coming = None if changes is None else changes[-1].value
        super().wake()


class Watches(Generic[C]):
    """The armed watches of one place."""

    def __init__(self) -> None:
        # A dict keeps the order of arming, so that a run can be repeated exactly.
        self._armed: dict[Watch[C], None] = {}

    def arm(self, concerns: Callable[[C], bool]) -> Watch[C]:
        """Return a watch that is woken by every change from now on that concerns it."""
        return self.add(Watch(self, concerns))

    def add(self, watch: W) -> W:
        """Wake a watch from now on; return it."""
        self._armed[watch] = None
        return watch

    def remove(self, watch: Watch[C]) -> None:
        """Forget a watch; an unknown one is fine."""
        self._armed.pop(watch, None)

    def notify(self, changes: Iterable[C]) -> None:
        """Wake every watch that one of the changes concerns."""
        told = tuple(changes)
        for watch in tuple(self._armed):
            if watch.link is not None and watch.link.is_cut:
                continue
            if concerning := tuple(filter(watch.concerns, told)):
                watch.wake(concerning)

    def wake_all(self) -> None:
        """Wake every watch, as if something may have been missed."""
        for watch in tuple(self._armed):
            watch.wake()

    def __len__(self) -> int:
        return len(self._armed)
