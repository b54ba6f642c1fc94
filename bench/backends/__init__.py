"""
Where the figures are taken: databases for the framework, and the same server or file without it.

A figure has a backend to itself, so that no figure's data stands in another one's way. What only some figures ask for
(``rows``, connections of the raw driver) is a method of those backends that run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from rig import Side

from backends.postgresql import postgresql
from backends.sqlite import sqlite
from backends.zookeeper import zookeeper


class Backend(Protocol):
    """One kind of metadata store and ledger store, as durable as it is by default."""

    name: str
    versions: Mapping[str, str]

    def config(self, database: str) -> dict[str, object]:
        """Return the sections of the configuration that name a database; it is made when it is first asked for."""

    def raw_update(self) -> AbstractAsyncContextManager[Side]:
        """Update a record of a header's size, naming the version that is replaced: the driver alone, as durable."""


class SqlBackend(Backend, Protocol):
    """A backend whose tables can be looked into."""

    async def rows(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on what the framework keeps."""


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Backend]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "zookeeper": zookeeper,
}
"""What opens a backend by its name; files go below the directory."""
