"""Tables of an application in the database of its stores, for tests of rows that commit with messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnframework import Client, Consumer, Message, Producer
from txnframework.testing import OwnRows
from txnframework_memory import connect
from txnframework_memory.testing import MemoryRows

if TYPE_CHECKING:
    from conftest import Stores

SOON_MS = 60_000


class Tables(ABC):
    """The rows of an application beside its stores; ``of`` returns the operations on an open connection."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._rows: dict[int, OwnRows] = {}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Open a connection for the length of a block, as ``pool.acquire`` does."""
        async with self._open() as rows:
            self._rows[id(rows.connection)] = rows
            try:
                yield rows.connection
            finally:
                del self._rows[id(rows.connection)]

    def of(self, connection: object) -> OwnRows:
        """Return the operations of a test on an open connection."""
        return self._rows[id(connection)]

    async def insert(self, connection: object, message: Message | str) -> None:
        """Insert a row; its key is the value of a message."""
        key = message if isinstance(message, str) else (message.value or b"").decode()
        await self.of(connection).insert(key)

    @abstractmethod
    def _open(self) -> Any:
        """Open a connection for the length of a block."""

    @abstractmethod
    async def committed(self) -> set[str]:
        """Return the keys of the committed rows."""


class MemoryTables(Tables):
    """Tables in a space."""

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[OwnRows]:
        yield MemoryRows(connect(self.stores.url).database)

    async def committed(self) -> set[str]:
        return {*await connect(self.stores.url).scan("rows")}


class SqliteTables(Tables):
    """Tables in a file."""

    @property
    def _path(self) -> Path:
        return Path(self.stores.url.removeprefix("sqlite:///"))

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[OwnRows]:
        from txnframework_sql.testing import _sqlite_rows

        with _sqlite_rows.connected(self._path, _sqlite_rows.SQLITE3) as rows:
            yield rows

    async def committed(self) -> set[str]:
        from txnframework_sql.testing import _sqlite_rows

        return {*_sqlite_rows.committed(self._path)}


class Shop:
    """A client with input messages, an output topic, and its own tables."""

    def __init__(self, client: Client, tables: Tables, invoices: Producer) -> None:
        self.client = client
        self.tables = tables
        self.invoices = invoices

    @classmethod
    @asynccontextmanager
    async def open(cls, tables: Tables, *orders: bytes, **sections: dict[str, object]) -> AsyncIterator[Shop]:
        """Open a client whose subscription has these messages."""
        async with tables.stores.open(**sections) as client:
            await client.create_topic("orders")
            await client.create_topic("invoices")
            await client.subscribe("orders", "billing", start="earliest")
            async with await client.producer("orders") as producer:
                for one in orders:
                    await producer.send(one, key=one)
            async with await client.producer("invoices") as invoices:
                yield cls(client, tables, invoices)

    async def consumer(self, kind: str = "exclusive", **options: Any) -> Consumer:
        """Open a consumer of the subscription."""
        return await self.client.consumer("orders", "billing", type=kind, **options)

    async def sent(self) -> list[bytes]:
        """Return the values of the committed output."""
        return await self.tables.stores.read(self.client, "invoices")

    async def left(self) -> list[bytes]:
        """Return the input messages that are not acknowledged."""
        await self.client.maintain()
        return [one.value for one in await self.client.peek("orders", "billing", 1000)]

    async def counts(self) -> tuple[int, int, int]:
        """Return how many rows and output messages count, and how many input messages are not acknowledged."""
        return len(await self.tables.committed()), len(await self.sent()), len(await self.left())
