"""
Watches on the ends of logs: the servers tell on a subject of each log that a record was stored.

What they tell is a hint only: the watcher reads. A hint can be lost between two servers; so a log that is watched is
also looked at from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from zope.interface import implementer

from txnframework.errors import Closed, TxnFrameworkError
from txnframework.interfaces import IWatch
from txnframework.runtime.tasks import start_task
from txnframework_nats.connection._connection import NatsConnection

Look = Callable[[], Awaitable[bool]]
"""Returns whether a log has records that this process has not read."""


@implementer(IWatch)
class TailWatch:
    """An armed watch on the end of a log; it carries no data."""

    def __init__(self, watched: WatchedLog) -> None:
        self._watched = watched
        self._woken = asyncio.Event()
        self.is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed; see IWatch."""
        await self._woken.wait()
        if self.is_closed:
            raise Closed("the watch was closed")
        self._woken.clear()

    async def close(self) -> None:
        """Close the watch; may be repeated."""
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return."""
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self.is_closed = True
        self._woken.set()
        self._watched.armed.pop(self, None)


class WatchedLog:
    """The armed watches on one log. ``read_upto``: returns the number of the last record that this process has read."""

    def __init__(self, subject: str, look: Look, read_upto: Callable[[], int]) -> None:
        self.subject = subject
        self.look = look
        self.armed: dict[TailWatch, None] = {}
        self.subscription: Subscription | None = None
        self._read_upto = read_upto

    def wake(self) -> None:
        """Wake every watch."""
        for watch in tuple(self.armed):
            watch.wake()

    async def told(self, message: Msg) -> None:
        """Wake every watch, unless this process has read that record."""
        number = (message.headers or {}).get("Nats-Sequence", "")
        if not number.isdecimal() or int(number) > self._read_upto():
            self.wake()


class TailWatches:
    """The watches of a store. Every ``look_s`` seconds, the watched logs are looked at."""

    def __init__(self, connection: NatsConnection, look_s: float) -> None:
        self._connection = connection
        self._look_s = look_s
        self._logs: dict[str, WatchedLog] = {}
        self._looking: asyncio.Task[None] | None = None
        self._subscribing = asyncio.Lock()
        self.is_closed = False

    async def arm(self, subject: str, look: Look, read_upto: Callable[[], int]) -> TailWatch:
        """Return a watch on the log with this subject of hints."""
        async with self._subscribing:
            self._require_open()
            watched = self._logs.get(subject)
            if watched is None:
                watched = self._logs[subject] = WatchedLog(subject, look, read_upto)
            watch = TailWatch(watched)
            watched.armed[watch] = None
            try:
                if watched.subscription is None:
                    # The reads that follow take the same way as the subscription, and come after it.
                    watched.subscription = await self._connection.subscribe(watched.told, subject)
                await self._forget_unused()
            except BaseException:
                watch.end()
                raise
        if self._looking is None or self._looking.done():
            self._looking = start_task(self._look())
        return watch

    def wake(self, subject: str) -> None:
        """Wake the watches on a log: this process has read or stored a record."""
        watched = self._logs.get(subject)
        if watched is not None:
            watched.wake()

    def wake_all(self) -> None:
        """Wake every watch: hints may have been lost."""
        for watched in tuple(self._logs.values()):
            watched.wake()

    async def close(self) -> None:
        """End every watch; may be repeated."""
        self.is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        for watched in tuple(self._logs.values()):
            for watch in tuple(watched.armed):
                watch.end()
        async with self._subscribing:
            await self._forget_unused()

    async def _look(self) -> None:
        """Look at the watched logs from time to time, as long as there are any."""
        while any(watched.armed for watched in self._logs.values()):
            await asyncio.sleep(self._look_s)
            for watched in tuple(self._logs.values()):
                if not watched.armed:
                    continue
                try:
                    if await watched.look():
                        watched.wake()
                except TxnFrameworkError:
                    # The watcher reads when it is woken, and gets the error.
                    watched.wake()
            async with self._subscribing:
                await self._forget_unused()

    async def _forget_unused(self) -> None:
        """End the subscriptions of logs that have no watch any more."""
        for subject, watched in tuple(self._logs.items()):
            if not watched.armed:
                del self._logs[subject]
                if watched.subscription is not None:
                    await self._connection.unsubscribe(watched.subscription)

    def _require_open(self) -> None:
        if self.is_closed:
            raise Closed("the ledger store was closed")
