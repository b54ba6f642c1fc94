"""The executor of a PostgreSQL database: steps are performed on held connections, in the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txnframework.errors import Closed
from txnframework_sql._executor import Observer
from txnframework_sql._options import DatabaseOptions
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._connections import Connections
from txnframework_sql.postgresql._opened import open_connections
from txnframework_sql.postgresql._payloads import payloads
from txnframework_sql.postgresql._statements import perform
from txnframework_sql.steps.calls import Steps
from txnframework_sql.steps.changes import Change

T = TypeVar("T")

_NOTIFY = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload"


class PostgresqlExecutor:
    """
    Performs steps in transactions of their own; done again from their start when another writer was in the way.

    What is hot does not go this way: it has a function in the database, which is one round trip.

    :raises Closed: see ``Connections``.
    """

    def __init__(self, connections: Connections, options: DatabaseOptions) -> None:
        self.connections = connections
        self._options = options
        self._is_closed = False
        self.shown_url = connections.shown_url
        self._observers: tuple[Observer, ...] = ()

    async def read(self, work: Callable[[], Steps[T]]) -> T:
        """Return what steps find in one view that holds every write confirmed before this call."""

        async def look(connection: Connection) -> T:
            async with connection.view():
                return await perform(connection, work(), [])

        return await self.connections.run(look)

    async def read_loosely(self, work: Callable[[], Steps[T]]) -> T:
        """Return what steps find, each statement in a view of its own: one round trip each, and no others."""

        async def look(connection: Connection) -> T:
            return await perform(connection, work(), [])

        return await self.connections.run(look)

    async def write(self, work: Callable[[], Steps[T]]) -> T:
        """
        Return what steps return, once what they wrote is durable.

        They raise before they write, or everything they wrote is undone.
        """
        changes: list[Change] = []

        async def do(connection: Connection) -> T:
            changes.clear()
            async with connection.transaction():
                result = await perform(connection, work(), changes)
                if told := payloads(changes):
                    await connection.read(_NOTIFY, self.connections.channel, told)
                return result

        try:
            return await self.connections.run(do)
        finally:
            # Whether it was done is not always known: watches wake for what may have happened, too.
            self.changed(tuple(changes))

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Let the observers know what was changed here, without waiting for the database to say so."""
        if changes:
            for observer in self._observers:
                observer(changes)

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit that is made here."""
        self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Do not call ``observer`` any more."""
        self._observers = tuple(known for known in self._observers if known != observer)

    def require_open(self) -> None:
        """Raise Closed if this cannot be used any more."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        self.connections.require_open()

    async def close(self) -> None:
        """Let go of the database, after what is under way; may be repeated."""
        if not self._is_closed:
            self._is_closed = True
            await open_connections.give_back(self.connections)
