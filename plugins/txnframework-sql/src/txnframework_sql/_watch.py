"""Watches: woken at once by commits of this connection, and by a look at the database for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.interfaces import IWatch
from txnframework_sql._executor import Executor
from txnframework_sql.sqlite import look
from txnframework_sql.steps.changes import Change, Target, concerns


@implementer(IWatch)
class Watch:
    """An armed watch on one target."""

    def __init__(self, watches: Watches, target: Target) -> None:
        self.target = target
        self.seen_version: int | None = None
        self.state: Hashable | None = None
        self._watches = watches
        self._woken = asyncio.Event()
        self.is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        if not self._woken.is_set():
            with self._watches.polling():
                await self._woken.wait()
        if self.is_closed:
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
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


class _Polling:
    """Counts who waits, so that nothing is asked while nobody does."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    def __enter__(self) -> None:
        self._watches.waiting += 1
        self._watches.ensure_polling()

    def __exit__(self, *_: object) -> None:
        self._watches.waiting -= 1


class Watches:
    """The armed watches of one store."""

    def __init__(self, executor: Executor, environment: Environment, poll_ms: int) -> None:
        self.waiting = 0
        self._executor = executor
        self._environment = environment
        self._poll_ms = poll_ms
        self._loop = asyncio.get_running_loop()
        # A dict, so that watches are woken in the order in which they were armed.
        self._armed: dict[Watch, None] = {}
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False
        executor.observe(self._observe)

    async def arm(self, target: Target) -> Watch:
        """Return a watch that no change from now on escapes."""
        self._require_open()
        watch = Watch(self, target)
        # First the commits of this connection, then those of others: what comes in between wakes once too often.
        self._armed[watch] = None
        try:
            found = await self._executor.read(lambda: look((target,)))
            self._require_open()
        except BaseException:
            watch.end()
            raise
        watch.seen_version, watch.state = found.version, found.states[target]
        return watch

    def polling(self) -> _Polling:
        """Return a context in which the database is asked for the commits of others."""
        return _Polling(self)

    def ensure_polling(self) -> None:
        """Let somebody ask, unless somebody does already."""
        if not self._is_closed and (self._poller is None or self._poller.done()):
            self._poller = self._loop.create_task(self._poll(), name="txnframework-sql watches")

    def remove(self, watch: Watch) -> None:
        """Forget a watch; an unknown one is fine."""
        self._armed.pop(watch, None)

    async def close(self) -> None:
        """End every watch; may be repeated."""
        self._is_closed = True
        self._executor.ignore(self._observe)
        for watch in tuple(self._armed):
            watch.end()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
            self._poller = None

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._executor.shown_url} is being closed, and its watches with it")

    async def _poll(self) -> None:
        """Ask again and again whether another connection has committed, as long as somebody waits."""
        while self.waiting:
            try:
                await self._wake_by_others()
            except Closed:
                return
            except TxnFrameworkError:
                # Whatever was in the way may have hidden a change.
                for watch in tuple(self._armed):
                    watch.wake()
            await self._environment.sleep_until(self._environment.now_ms() + self._poll_ms)

    async def _wake_by_others(self) -> None:
        """Look whether others have committed; if so, wake whom it may concern."""
        version = (await self._executor.read(lambda: look(()))).version
        unsure = [watch for watch in self._armed if watch.seen_version != version]
        if not unsure:
            return
        found = await self._executor.read(lambda: look({watch.target for watch in unsure}))
        for watch in unsure:
            state = found.states[watch.target]
            if state is None or state != watch.state:
                watch.wake()
            watch.seen_version, watch.state = found.version, state

    def _observe(self, changes: tuple[Change, ...]) -> None:
        # On the database's thread: only a glance here, the rest in the loop of the store.
        if self._armed:
            # The loop may have been closed, by its own thread and at any moment; then nobody waits in it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._notify, changes)

    def _notify(self, changes: tuple[Change, ...]) -> None:
        for watch in tuple(self._armed):
            if any(concerns(watch.target, change) for change in changes):
                watch.wake()
