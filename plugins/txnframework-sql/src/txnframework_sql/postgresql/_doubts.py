"""
Writes that were sent and not answered: each is decided before anybody looks whether it was done.

A connection that is lost here is not lost to the server, whose process for it (the backend) may wait for a lock or be
about to commit, and finish that later. Whoever reads meanwhile would be told that nothing is there, and find it there
afterwards. So that backend is ended first; once it is gone, what it did not commit is never committed.
"""

from __future__ import annotations

from txnframework.errors import Unavailable
from txnframework_sql.postgresql._connection import Backend, Connection
from txnframework_sql.postgresql._url import Server

_OWN = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# The process is waited for: it may be in the middle of a commit, which nothing interrupts.
_END = "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
_END_MS = 5_000


async def backend_of(connection: Connection) -> Backend:
    """Return the process that serves a connection."""
    ((pid, started),) = await connection.read(_OWN)
    return Backend(pid, started)


class Doubts:
    """
    The backends that may still be at a write which nobody waits for any more, of one process, by database.

    They outlive the connections of which they are known, since a store that was closed in doubt may be opened again.
    """

    def __init__(self) -> None:
        self._backends: dict[Server, set[Backend]] = {}

    def add(self, server: Server, backend: Backend) -> None:
        """Note that nobody knows what became of a write."""
        self._backends.setdefault(server, set()).add(backend)

    @property
    def are_there(self) -> bool:
        """Whether there is any, of whatever database."""
        return bool(self._backends)

    def remove(self, server: Server, backend: Backend) -> None:
        """Forget a backend that has answered, or is gone."""
        left = self._backends.get(server, set())
        left.discard(backend)
        if not left:
            self._backends.pop(server, None)

    async def end(self, server: Server, connection: Connection) -> None:
        """
        Return when every write of a lost connection is done, or never will be.

        :raises Unavailable: one of them cannot be ended yet; until it is, nobody can know what there is.
        """
        for backend in tuple(self._backends.get(server, ())):
            rows = await connection.read(_END, backend.pid, backend.started, _END_MS)
            if rows and not rows[0][0]:
                raise Unavailable(
                    f"{server.shown_url} has not yet ended process {backend.pid}, whose connection was lost while it"
                    " wrote; try again"
                )
            self.remove(server, backend)


doubts = Doubts()
"""Of this process."""
