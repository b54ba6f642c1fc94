"""Shared readings of views: one for each view, however many browsers show it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import InvalidInput, NotFound, TxnFrameworkError
from txnframework.runtime.tasks import start_task
from txnframework_console.remembered import read_exception
from txnframework_console.texts import visible

_LOG = logging.getLogger(__name__)

POLL_MS = 2_000
"""The time from the end of one reading to the next one, while a browser watches."""
LOAD_MAX = 4
"""After a reading the view rests for at least this many times as long as the reading took."""
FRESH_MS = 1_000
"""How long a reading is used for further requests."""
READ_MAX_MS = 10_000
"""How long a reading may take before the page says that the stores do not answer."""
VIEWS_MAX = 200
"""The number of views that are remembered."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    What a view showed at one time.

    ``html``: the last complete reading, empty if there is none, and ``read_ms`` its time. ``problem``: one sentence for
    a person if the last attempt failed. ``status``: the status code of the page.
    """

    html: str
    read_ms: int
    problem: str = ""
    status: int = 200

    @property
    def shown(self) -> tuple[str, str]:
        """What a person sees of it, whenever it was read."""
        return self.html, self.problem


class Poll:
    """
    The readings of one view.

    ``read`` returns the view as HTML. It runs once at a time. It runs again and again while there are watchers, and
    otherwise only when a page is requested.
    """

    def __init__(self, read: Callable[[], Awaitable[str]], environment: Environment) -> None:
        self._read = read
        self._environment = environment
        self._latest: Snapshot | None = None
        self._tried_ms = 0
        self._took_ms = 0
        self._reading: asyncio.Task[Snapshot] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self.watchers = 0
        """The number of browsers that watch this view."""

    async def snapshot(self) -> Snapshot:
        """Return the latest snapshot; it is at most ``FRESH_MS`` old."""
        if self._latest is None or self._environment.monotonic_ms() - self._tried_ms >= FRESH_MS:
            return await self._attempt()
        return self._latest

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the latest snapshot, and then each one that differs from the last one, until the console closes."""
        self.watchers += 1
        if self._loop is None:
            self._loop = start_task(self._repeat())
        seen: Snapshot | None = None
        try:
            while not self._closed:
                changed = self._changed
                latest = self._latest
                if latest is not None and (seen is None or latest.shown != seen.shown):
                    seen = latest
                    yield latest
                else:
                    await changed.wait()
        finally:
            self.watchers -= 1
            if self.watchers == 0 and self._loop is not None:
                self._loop.cancel()
                self._loop = None

    async def close(self) -> None:
        """End all watches and readings."""
        self._closed = True
        self._notify()
        for task in (self._loop, self._reading):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _repeat(self) -> None:
        while True:
            await self._attempt()
            rest_ms = max(POLL_MS, LOAD_MAX * self._took_ms)
            await self._environment.sleep_until(self._environment.now_ms() + rest_ms)

    async def _attempt(self) -> Snapshot:
        """Return the result of a reading, or a problem if it takes too long; the reading then goes on."""
        if self._reading is None:
            self._reading = start_task(self._once())
            self._reading.add_done_callback(self._end)
        reading = self._reading
        clock = self._environment
        timer = start_task(clock.sleep_until(clock.now_ms() + READ_MAX_MS))
        try:
            await asyncio.wait({reading, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if reading.done() and not reading.cancelled():
            return reading.result()
        return self._keep(f"The stores did not answer within {READ_MAX_MS // 1_000} s.", 503)

    def _end(self, done: asyncio.Task[Snapshot]) -> None:
        self._reading = None
        read_exception(done)

    async def _once(self) -> Snapshot:
        began_ms = self._environment.monotonic_ms()
        try:
            html = await self._read()
        except (NotFound, InvalidInput) as error:
            return self._keep(visible(error), 404 if isinstance(error, NotFound) else 400)
        except TxnFrameworkError as error:
            return self._keep(f"The stores do not answer: {visible(error)}", 503)
        except Exception:
            _LOG.exception("a view cannot be read")
            return self._keep("The console failed to read this view; its log says why.", 500)
        self._took_ms = self._environment.monotonic_ms() - began_ms
        return self._set(Snapshot(html, self._environment.now_ms()))

    def _keep(self, problem: str, status: int) -> Snapshot:
        """Keep showing the last complete reading, with a problem; what does not exist has none."""
        last = self._latest if status == 503 else None
        html, read_ms = ("", 0) if last is None else (last.html, last.read_ms)
        return self._set(Snapshot(html, read_ms, problem, status))

    def _set(self, snapshot: Snapshot) -> Snapshot:
        self._latest, self._tried_ms = snapshot, self._environment.monotonic_ms()
        self._notify()
        return snapshot

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Polls:
    """The polls of all views, by the query of each view; those without watchers are forgotten first."""

    def __init__(self, read: Callable[[Hashable], Awaitable[str]], environment: Environment) -> None:
        self._read = read
        self._environment = environment
        self._polls: dict[Hashable, Poll] = {}

    @property
    def watchers(self) -> int:
        """The number of browsers that watch a view."""
        return sum(one.watchers for one in self._polls.values())

    def of(self, query: Hashable) -> Poll:
        """Return the poll of a view."""
        poll = self._polls.pop(query, None) or Poll(lambda: self._read(query), self._environment)
        self._polls[query] = poll  # the last one of the dictionary was used last
        idle = [one for one, each in self._polls.items() if not each.watchers and one != query]
        for one in idle[: max(0, len(self._polls) - VIEWS_MAX)]:
            del self._polls[one]
        return poll

    async def close(self) -> None:
        """End all watches and readings."""
        for poll in tuple(self._polls.values()):
            await poll.close()
