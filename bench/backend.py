"""The protocols of the backends that are measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Side = Callable[[], Awaitable[float]]
"""Takes one sample and returns the seconds that count."""


class Backend(Protocol):
    """A metadata store and a ledger store of one kind, with their default durability."""

    name: str
    versions: Mapping[str, str]

    def config(self, database: str) -> dict[str, object]:
        """Return the sections of a configuration for this database, which is created on its first use."""

    def raw_update(self) -> AbstractAsyncContextManager[Side]:
        """Update a record of a header's size with a version check, by the driver alone, with the same durability."""


class SqlBackend(Backend, Protocol):
    """A backend whose tables can be queried."""

    async def rows(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a query on the framework's tables."""
