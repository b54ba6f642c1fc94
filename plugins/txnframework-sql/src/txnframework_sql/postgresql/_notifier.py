"""The connection that notifies other processes of this process's commits, once they are visible."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import start_task
from txnframework.runtime.waits import is_done_within
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._payloads import ANYTHING_CHANGED, payloads
from txnframework_sql.steps.statements import Change

_NOTIFY = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload"
# A notification is a hint, so nothing waits until it is on disk.
_SETUP = "SET synchronous_commit = off"
_PID = "SELECT pg_backend_pid()"
# The shortest time between two notifications: an idle program's commit is notified at once, a busy one's are gathered.
_INTERVAL_S = 0.005
_FIRST_PAUSE_MS = 20
_CLOSE_S = 1
# More changes than this are notified as one that wakes every watch.
_CHANGES_MAX = 1_000


class Notifier:
    """
    Sends the changes of commits at once; those that come until shortly after a notification share the next one.

    A transaction that has called NOTIFY holds a lock of the whole server while it commits. So commits of data call it
    never, and follow one another neither in this database nor in others of the server.

    Crash window: a process may end after a commit and before its notification. Each listener therefore wakes its
    watches from time to time without one; see ``Listener``.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        channel: Callable[[], str],
        environment: Environment,
        options: PostgresqlOptions,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._environment = environment
        self._options = options
        self.server_pid: int | None = None
        """The server process that notifies. The watches of this process need no notification of it."""
        self._connection: Connection | None = None
        self._changes: dict[Change, None] = {}
        self._is_anything = False
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def send(self, changes: Collection[Change]) -> None:
        """Notify soon of changes that are visible now."""
        self._changes.update(dict.fromkeys(changes))
        if len(self._changes) > _CHANGES_MAX:
            self._is_anything = True
        self._start()

    def send_anything(self) -> None:
        """Notify soon that anything may have changed: a write of unknown outcome may be visible now."""
        self._is_anything = True
        self._start()

    async def close(self) -> None:
        """Notify of what is left, unless the server does not answer soon, and close the connection; idempotent."""
        self._is_closing = True
        if self._task is not None:
            # Real time, because the wait happens outside this process.
            if not await is_done_within(self._task, _CLOSE_S):
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._disconnect()

    def _start(self) -> None:
        if self._is_anything:
            self._changes.clear()
        if self._task is None or self._task.done():
            self._task = start_task(self._run(), name="txnframework-sql notifying")

    async def _run(self) -> None:
        failures = 0
        while self._changes or self._is_anything:
            texts = [ANYTHING_CHANGED] if self._is_anything else payloads(self._changes)
            self._changes, self._is_anything = {}, False
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                    await self._connection.script(_SETUP)
                    self.server_pid = (await self._connection.read(_PID))[0][0]
                await self._connection.read(_NOTIFY, self._channel(), texts)
                failures = 0
                if not self._is_closing:
                    # Real time: it spares the server, and programs with virtual time wait for the notification too.
                    await asyncio.sleep(_INTERVAL_S)
            except TxnFrameworkError:
                self._disconnect()
                self._is_anything = True
                failures += 1
                if self._is_closing:
                    return  # listeners wake their watches by themselves
                if failures > 1:
                    backoff = Backoff(self._environment, _FIRST_PAUSE_MS, self._options.reconnect_max_ms)
                    await backoff.pause(failures)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
