"""Watches: who is to be woken by which change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IWatch

C = TypeVar("C")


@implementer(IWatch)
class Watch(Generic[C]):
    """A watch on the changes for which ``concerns`` is true."""

    def __init__(self, watches: Watches[C], concerns: Callable[[C], bool]) -> None:
        self.concerns = concerns
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

    def wake(self) -> None:
        """Make ``changed`` return."""
        self._may_have_changed = True
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


class Watches(Generic[C]):
    """The armed watches of one place."""

    def __init__(self) -> None:
        # A dict keeps the order of arming, so that a run can be repeated exactly.
        self._armed: dict[Watch[C], None] = {}

    def arm(self, concerns: Callable[[C], bool]) -> Watch[C]:
        """Return a watch that is woken by every change from now on that concerns it."""
        watch = Watch(self, concerns)
        self._armed[watch] = None
        return watch

    def remove(self, watch: Watch[C]) -> None:
        """Forget a watch; an unknown one is fine."""
        self._armed.pop(watch, None)

    def notify(self, changes: Iterable[C]) -> None:
        """Wake every watch that one of the changes concerns."""
        told = tuple(changes)
        for watch in tuple(self._armed):
            if any(map(watch.concerns, told)):
                watch.wake()

    def __len__(self) -> int:
        return len(self._armed)
