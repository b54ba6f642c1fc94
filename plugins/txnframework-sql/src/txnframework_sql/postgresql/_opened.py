"""Which connections this process has, so that its stores in one database share them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable
from dataclasses import dataclass, field

from txnframework.environment import Environment
from txnframework_sql.postgresql._connections import Connections
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._url import Server


@dataclass(slots=True)
class _Shared:
    connections: Connections
    users: int = 0


@dataclass(slots=True)
class OpenConnections:
    """
    Connections by event loop and database, each for as long as somebody uses them.

    An event loop only ever looks at its own, so that threads do not meet here.
    """

    _shared: dict[Hashable, _Shared] = field(default_factory=dict)
    _left_to_parent: list[_Shared] = field(default_factory=list)

    def take(
        self, server: Server, environment: Environment, options: PostgresqlOptions, *, is_shared: bool
    ) -> Connections:
        """Return connections to a database, of this loop; to be given back."""
        if not is_shared:
            return Connections(server, environment, options)
        wanted = tuple(getattr(options, name) for name in PostgresqlOptions.__struct_fields__)
        key = (asyncio.get_running_loop(), server, id(environment), wanted)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(Connections(server, environment, options))
        shared.users += 1
        return shared.connections

    async def give_back(self, connections: Connections) -> None:
        """Close connections that nobody else uses."""
        for key, shared in tuple(self._shared.items()):
            if shared.connections is connections:
                shared.users -= 1
                if shared.users:
                    return
                del self._shared[key]
                break
        await connections.close()

    def forget(self) -> None:
        """Begin anew in a child process: its parent's sockets are not to be touched, not even by closing them."""
        self._left_to_parent.extend(self._shared.values())
        self._shared = {}


# The one thing that all openings in a process have in common.
open_connections = OpenConnections()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_connections.forget)
