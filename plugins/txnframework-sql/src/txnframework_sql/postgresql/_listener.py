"""The connection that receives notifications of other processes' commits, and its recovery after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.call_groups import copy_error
from txnframework.runtime.tasks import start_task
from txnframework.runtime.waits import is_done_within
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql._watch import Watch, Watches
from txnframework_sql.postgresql._connection import Connection, Driver
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, translated
from txnframework_sql.postgresql._payloads import ANYTHING_CHANGED, changes_of
from txnframework_sql.steps.statements import Change

_FIRST_PAUSE_MS = 20
# The driver's own timer would take a late reply for a lost one. It cannot be turned off.
_DRIVERS_TIMEOUT_S = 86_400
# If more notifications than this arrive together, they are not compared: every watch is woken.
_RECEIVED_MAX = 64
_PARTS = 3


class Subscriber(Protocol):
    """A receiver of commit notifications."""

    @property
    def armed(self) -> Collection[object]:
        """The watches that would be woken; while there are none, no connection is needed."""

    def wake(self, changes: Collection[Change]) -> None:
        """Wake the watches that the changes concern."""

    def wake_all(self) -> None:
        """Wake every watch: the missed changes are unknown."""

    def wake_part(self, part: int, parts: int) -> None:
        """Wake one of ``parts`` equal parts of the watches."""


class Listener:
    """
    Listens on a connection of its own, from the first watch on, for the stores that share it.

    PostgreSQL delivers a notification after its commit, to all sessions whose LISTEN was committed before. So a watch
    that is armed once LISTEN is active, and reads after that, misses nothing. No reader asks for "everything after the
    last number that I saw", because numbers are given before commits, and in another order.

    A process may end between its commit and its notification. So each heartbeat also wakes a part of the watches, and
    all of them in ``_PARTS`` heartbeats.

    After a loss of the connection, LISTEN is sent first and then every watch is woken, because notifications may have
    been lost. A heartbeat without a reply detects a connection whose server has vanished.

    A notification only makes watchers read again: any login of the database may send one, with any text. Notifications
    that arrive together wake each watch once, however many they are.

    :param own_pid: returns the server process of this process's own notifications, of which the watches know already.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        shown_url: str,
        environment: Environment,
        options: PostgresqlOptions,
        own_pid: Callable[[], int | None],
    ) -> None:
        self._connect = connect
        self._own_pid = own_pid
        self._shown_url = shown_url
        self._environment = environment
        self._options = options
        self.channel = ""
        """The channel on which the stores notify changes; set before ``listen`` is called."""
        self._subscribers: dict[Subscriber, None] = {}
        # Received payloads whose watches were not yet woken.
        self._received: list[str] = []
        self._driver: Driver | None = None
        self._task: asyncio.Task[None] | None = None
        # Callers that wait until LISTEN is active, or until an attempt failed.
        self._waiting: list[asyncio.Future[None]] = []
        self._is_retry_requested = asyncio.Event()
        self._heartbeat_lock = asyncio.Lock()
        self._is_closed = False

    def subscribe(self, subscriber: Subscriber) -> None:
        """Start delivering changes to a subscriber."""
        self._subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop delivering changes to a subscriber; an unknown one is ignored."""
        self._subscribers.pop(subscriber, None)

    def listen_on(self, channel: str) -> None:
        """Listen on a channel; if the channel differs from the one before, every watch is woken."""
        if self.channel != channel:
            self.channel = channel
            if self._driver is not None:
                self._driver.terminate()

    async def listen(self) -> None:
        """
        Return when LISTEN is active: later commits are received, or every subscriber is woken.

        :raises Unavailable: connecting failed.
        """
        if self._is_closed:
            raise Closed(f"the store {self._shown_url} was closed")
        if self._driver is not None and not self._driver.is_closed():
            return
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(heard)
        self._is_retry_requested.set()
        if self._task is None or self._task.done():
            self._task = start_task(self._run(), name="txnframework-sql listening")
        await heard

    def retry_now(self) -> None:
        """Start the next attempt without waiting, because the server answers other connections."""
        self._is_retry_requested.set()

    async def heartbeat(self) -> None:
        """
        Wait for a reply of the server: notifications of earlier commits have then been received.

        The server sends notifications before the reply. Without a connection, the call returns immediately.

        :raises Unavailable: no reply came within ``heartbeat_ms`` of a running event loop, and the connection is
            replaced.
        """
        async with self._heartbeat_lock:
            driver = self._driver
            if driver is None:
                return
            asking = start_task(driver.execute("SELECT 1", timeout=_DRIVERS_TIMEOUT_S))
            try:
                # Real time, because the wait happens outside this process.
                if not await is_done_within(asking, self._options.heartbeat_ms / 1000):
                    raise TimeoutError
                asking.result()
                self._deliver()
            except POSTGRESQL_ERRORS as error:
                driver.terminate()
                raise translated(error, self._shown_url) from error
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def close(self) -> None:
        """Stop listening; idempotent."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        """Listen, and reconnect after each loss, while any subscriber has armed watches."""
        failures = 0
        was_lost = False
        try:
            while self._waiting or self._is_wanted():
                try:
                    # A connection that never replied counts as a failure: the next attempt is delayed.
                    failures = 0 if await self._listen_until_lost(was_lost) else failures + 1
                    was_lost = True
                except TxnFrameworkError as error:
                    failures += 1
                    self._resolve(error)
                if failures > 1:
                    await self._pause(failures)
        finally:
            # No caller may wait for a task that has ended, whatever ended it.
            self._resolve(Closed(f"the store {self._shown_url} no longer receives notifications; open it again"))

    async def _listen_until_lost(self, was_lost: bool) -> bool:
        """
        Connect, listen, and return when the connection is lost; raise an error that occurs before.

        Return whether a heartbeat was answered in between.
        """
        self._is_retry_requested.clear()
        driver = (await self._connect()).driver
        lost = asyncio.Event()
        try:
            driver.add_termination_listener(lambda _: lost.set())
            try:
                await driver.add_listener(self.channel, self._on_notification)
            except POSTGRESQL_ERRORS as error:
                raise translated(error, self._shown_url) from error
            self._driver = driver
            if was_lost:
                for subscriber in tuple(self._subscribers):
                    subscriber.wake_all()
            self._resolve(None)
            return await self._heartbeat_until(lost)
        finally:
            self._driver = None
            driver.terminate()

    async def _heartbeat_until(self, lost: asyncio.Event) -> bool:
        """Return, when the connection is lost, whether a heartbeat was ever answered."""
        has_answered = False
        # Not the same part in all processes at the same time.
        part = self._environment.random_bits(8)
        while not lost.is_set():
            await _first_of(self._environment.sleep(self._options.heartbeat_ms), lost.wait())
            if not lost.is_set():
                part += 1
                for subscriber in tuple(self._subscribers):
                    subscriber.wake_part(part % _PARTS, _PARTS)
                try:
                    await self.heartbeat()
                except TxnFrameworkError:
                    break
                has_answered = True
        return has_answered

    async def _pause(self, failures: int) -> None:
        """
        Wait before the next attempt, longer each time; return early if a caller asks, or the server answers others.
        """
        backoff = Backoff(self._environment, _FIRST_PAUSE_MS, self._options.reconnect_max_ms)
        await _first_of(backoff.pause(failures + 1), self._is_retry_requested.wait())

    def _is_wanted(self) -> bool:
        return any(subscriber.armed for subscriber in self._subscribers)

    def _resolve(self, error: TxnFrameworkError | None) -> None:
        """Report the outcome of LISTEN to the waiting callers."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(copy_error(error, error.__cause__))

    def _on_notification(self, _: object, pid: int, __: str, payload: object) -> None:
        if pid == self._own_pid():
            return
        if not self._received:
            asyncio.get_running_loop().call_soon(self._deliver)
        if len(self._received) <= _RECEIVED_MAX:
            self._received.append(str(payload))

    def _deliver(self) -> None:
        """Wake the watches that the received notifications concern."""
        heard, self._received = self._received, []
        if not heard:
            return
        changes: dict[Change, None] = {}
        for payload in heard if len(heard) <= _RECEIVED_MAX else (ANYTHING_CHANGED,):
            found = changes_of(payload)
            if found is None:
                for subscriber in tuple(self._subscribers):
                    subscriber.wake_all()
                return
            changes.update(dict.fromkeys(found))
        for subscriber in tuple(self._subscribers):
            subscriber.wake(changes)


class ListenerWakeUps:
    """The wake-ups of one store's watches; see ``WakeUps``."""

    def __init__(self, listener: Listener, watches: Watches) -> None:
        self._listener = listener
        self._watches = watches
        listener.subscribe(watches)

    async def arm(self, _: Watch) -> None:
        """Return when LISTEN is active."""
        await self._listener.listen()

    def disarm(self, watch: Watch) -> None:
        """Do nothing: no state is kept for a watch."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which a caller waits; notifications arrive outside it as well."""
        return nullcontext()

    async def close(self) -> None:
        """Stop listening; idempotent."""
        self._listener.unsubscribe(self._watches)


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Wait for the first coroutine to end, and cancel the others."""
    tasks = [start_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
