"""The polling of SQLite, which sends no notifications: detects commits of other processes and possible changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import text

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.model import Key, KeyRange
from txnframework.runtime.tasks import start_task
from txnframework_sql._watch import Watch, Watches
from txnframework_sql.steps.ledgers import end_state
from txnframework_sql.steps.records import get_record
from txnframework_sql.steps.statements import Executor, LedgerChange, Steps, Target, row

_RANGE_POLLS = 10
"""
The number of polls between two wake-ups of a watch on a range of keys, which a poll cannot compare.

Any commit of another process wakes it, and the watcher reads the whole range again. Hosts watch each other's leases
so, for as long as they live.
"""

# Its value differs if another connection has committed in between.
_DATA_VERSION = text("PRAGMA data_version")


@dataclass(frozen=True, slots=True)
class _Poll:
    """The result of one poll: the data version, which shows commits of others, and the state of some targets."""

    version: int
    states: dict[Target, Hashable | None]


def _poll_targets(targets: Collection[Target]) -> Steps[_Poll]:
    """Read the data version and the state of some targets."""
    version = yield from row(_DATA_VERSION)
    assert version is not None
    states: dict[Target, Hashable | None] = {}
    for target in targets:
        states[target] = yield from _state(target)
    return _Poll(version[0], states)


def _state(target: Target) -> Steps[Hashable | None]:
    """Return a value that differs after every change of a target; None where only a scan would show a change."""
    if isinstance(target, Key):
        record = yield from get_record(target)
        # An absent record may have been created and deleted in between.
        return None if record is None else record.version
    if isinstance(target, LedgerChange):
        return (yield from end_state(target.managed_id))
    return None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state found when a watch was armed or last checked, by the poll of this number."""

    version: int
    state: Hashable | None
    poll: int


class Poller:
    """Polls every ``poll_ms`` for commits of others, while a caller waits; see ``WakeUps``."""

    def __init__(self, watches: Watches, executor: Executor, environment: Environment, poll_ms: int) -> None:
        self._watches = watches
        self._executor = executor
        self._environment = environment
        self._poll_ms = poll_ms
        self._seen: dict[Watch, _Seen] = {}
        self._polls = 0
        self._waiting = 0
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False

    async def arm(self, watch: Watch) -> None:
        """Store the current state of the watch's target."""
        found = await self._executor.read(lambda: _poll_targets((watch.target,)))
        self._seen[watch] = _Seen(found.version, found.states[watch.target], self._polls - _RANGE_POLLS)

    def disarm(self, watch: Watch) -> None:
        """Remove a watch; an unknown one is ignored."""
        self._seen.pop(watch, None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Poll while the context is open."""
        self._waiting += 1
        try:
            if not self._is_closed and (self._poller is None or self._poller.done()):
                self._poller = start_task(self._poll(), name="txnframework-sql watches")
            yield
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Stop polling; idempotent."""
        self._is_closed = True
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
            self._poller = None

    async def _poll(self) -> None:
        """Check repeatedly whether another connection has committed, while a caller waits."""
        while self._waiting:
            try:
                await self._wake_by_others()
            except Closed:
                return
            except TxnFrameworkError:
                # The failed poll may have hidden a change.
                self._watches.wake_all()
            await self._environment.sleep_until(self._environment.now_ms() + self._poll_ms)

    async def _wake_by_others(self) -> None:
        """Check for commits of others; wake the watches that one may concern, some of them at a later poll."""
        self._polls += 1
        version = (await self._executor.read(lambda: _poll_targets(()))).version
        outdated = [
            watch for watch, seen in self._seen.items() if seen.version != version and self._is_due(watch.target, seen)
        ]
        if not outdated:
            return
        found = await self._executor.read(lambda: _poll_targets({watch.target for watch in outdated}))
        for watch in outdated:
            seen = self._seen.get(watch)
            if seen is None:
                # The watch was closed during the poll.
                continue
            state = found.states[watch.target]
            if state is None or state != seen.state:
                watch.wake()
            self._seen[watch] = _Seen(found.version, state, self._polls)

    def _is_due(self, target: Target, seen: _Seen) -> bool:
        return not isinstance(target, KeyRange) or self._polls - seen.poll >= _RANGE_POLLS
