"""The connections of the application that transactions of this client commit with."""

from __future__ import annotations

from txnframework.errors import InvalidInput


class UsedConnections:
    """Connections that belong to an open transaction; each belongs to one at a time."""

    def __init__(self) -> None:
        self._used: dict[int, object] = {}

    def take(self, connection: object) -> None:
        """Note that a transaction uses a connection; raise InvalidInput if another one does."""
        if id(connection) in self._used:
            raise InvalidInput("the connection of commit_with belongs to another open transaction; end that one first")
        self._used[id(connection)] = connection

    def give_back(self, connection: object) -> None:
        """Note that no transaction uses a connection; may be repeated."""
        self._used.pop(id(connection), None)
