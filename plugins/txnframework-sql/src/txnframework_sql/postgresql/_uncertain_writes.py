"""
Writes that were sent and not answered: each is decided before anybody reads whether it was done.

A connection that is lost here is not lost to the server, whose process for it (the backend) may wait for a lock or be
about to commit, and finish that later. A reader would meanwhile be told that nothing is there, and find it there
afterwards. So that backend is ended first; once it is gone, what it did not commit is never committed.
"""

from __future__ import annotations

from txnframework.errors import Unavailable
from txnframework_sql.postgresql._connection import Backend, Connection
from txnframework_sql.postgresql._server import Server

# The process is waited for: it may be in the middle of a commit, which nothing interrupts.
_END = "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
_END_MS = 5_000


class UncertainWrites:
    """
    The backends of one process that may still be at a write whose reply is not waited for any more, by database.

    They outlive the connections of which they are known, since a store that was closed in doubt may be opened again.
    """

    def __init__(self) -> None:
        # With whether an end of it was asked for.
        self._backends: dict[Server, dict[Backend, bool]] = {}

    def add(self, server: Server, backend: Backend) -> None:
        """Note that the outcome of a write is not known."""
        self._backends.setdefault(server, {})[backend] = False

    @property
    def are_there(self) -> bool:
        """Whether there is any, of whatever database."""
        return bool(self._backends)

    def settle(self, server: Server, backend: Backend) -> bool:
        """
        Forget a backend that has answered; return whether its connection can be relied on.

        It cannot where other connections of this process came to read meanwhile: their request to end the backend may
        still be on its way, and would end whatever the backend does by then.
        """
        is_being_ended = self._backends.get(server, {}).get(backend, True)
        self._remove(server, backend)
        return not is_being_ended

    async def end(self, server: Server, connection: Connection) -> None:
        """
        Return when every write of a lost connection is done, or never will be.

        :raises Unavailable: one of them cannot be ended yet; until it is, its outcome cannot be known.
        """
        for backend in tuple(self._backends.get(server, ())):
            known = self._backends.get(server, {})
            if backend not in known:
                continue  # it has answered, or another caller has ended it, while the one before it was waited for
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
"""Of this process."""
