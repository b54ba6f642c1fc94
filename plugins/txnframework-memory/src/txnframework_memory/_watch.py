"""Watches: who is to be woken by which change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import ITellingTailWatch, ITellingWatch, IWatch
from txnframework.model import LedgerEntry
from txnframework_memory._link import Link

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
