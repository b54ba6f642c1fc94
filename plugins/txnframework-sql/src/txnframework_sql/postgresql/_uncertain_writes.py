"""
Writes that were sent and got no reply: each is decided before any caller reads its outcome.

A lost connection may still be open on the server. The server's process for it (the backend) may wait for a lock or be
about to commit, and may finish later. A reader could then first find no write, and find it afterwards. So that backend
is ended first. Once it has ended, its uncommitted writes are never committed.
"""

from __future__ import annotations

from txnframework.errors import Unavailable
from txnframework_sql.postgresql._connection import Backend, Connection
from txnframework_sql.postgresql._server import Server

# The statement waits for the end of the process, which may be in the middle of a commit; a commit is not interrupted.
_END = "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
_END_MS = 5_000


class UncertainWrites:
    """
    The backends that may still execute a write of this process whose reply is no longer awaited, by database.

    They outlive their connections, because a store that was closed with an uncertain write may be opened again.
    """

    def __init__(self) -> None:
        # The value is whether the end of the backend was requested.
        self._backends: dict[Server, dict[Backend, bool]] = {}

    def add(self, server: Server, backend: Backend) -> None:
        """Add a write of unknown outcome."""
        self._backends.setdefault(server, {})[backend] = False

    @property
    def are_there(self) -> bool:
        """Whether there are uncertain writes on any database."""
        return bool(self._backends)

    def settle(self, server: Server, backend: Backend) -> bool:
        """
        Remove a backend that has replied; return whether its connection is reliable.

        It is not reliable if other connections of this process have requested the end of the backend meanwhile. That
        request may still be on its way, and would end whatever the backend executes by then.
        """
        is_being_ended = self._backends.get(server, {}).get(backend, True)
        self._remove(server, backend)
        return not is_being_ended

    async def end(self, server: Server, connection: Connection) -> None:
        """
        Return when every write of a lost connection has completed or can never complete.

        :raises Unavailable: a backend cannot be ended yet; until it is, the outcome of its write is unknown.
        """
        for backend in tuple(self._backends.get(server, ())):
            known = self._backends.get(server, {})
            if backend not in known:
                continue  # it has replied, or another caller has ended it, during the wait for the previous one
            known[backend] = True
            rows = await connection.read(_END, backend.pid, backend.started, _END_MS)
            if rows and not rows[0][0]:
                raise Unavailable(
                    f"{server.shown_url} has not yet ended process {backend.pid}, whose connection was lost while it"
                    " wrote; try again"
                )
            self._remove(server, backend)

    def _remove(self, server: Server, backend: Backend) -> None:
        left = self._backends.get(server, {})
        left.pop(backend, None)
        if not left:
            self._backends.pop(server, None)


uncertain_writes = UncertainWrites()
"""The uncertain writes of this process."""
