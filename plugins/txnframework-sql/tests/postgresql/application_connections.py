"""Connections of an application of every kind, to the database of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from txnframework.interfaces import (
    ICoCommitStore,
    IDatabaseTransaction,
    ILedgerStore,
    IManagedLedger,
)
from txnframework.model import (
    EARLIEST,
    Append,
    EntryRange,
    Expect,
    IndexEntry,
    Key,
    LedgerAppend,
    Limit,
    Put,
    Step,
)


@dataclass
class Opened:
    """A connection that the application gives, and how its statements are executed."""

    given: Any
    run: Callable[[str], Awaitable[Any]]
    begins: bool = False
    """Whether the application sends BEGIN and COMMIT itself."""


INSERT = "INSERT INTO mine (text) VALUES ('row')"


class Way(Enum):
    """How the header is written in the transaction of the application."""

    PUT = "put"
    """The header was created before, and is changed."""
    STEP = "one step"
    """The header is created, together with an entry of a ledger."""


class Application:
    """A store, and a table of the application in its database; each test has a header and a ledger of its own."""

    def __init__(
        self, url: str, store: ICoCommitStore, header: Key, way: Way = Way.PUT, ledgers: ILedgerStore | None = None
    ) -> None:
        self.url = url
        self.store = store
        self.header = header
        self.way = way
        self._ledgers = ledgers
        self._opened: dict[str, IManagedLedger] = {}

    async def begun(self) -> int | Expect:
        """Write the open header, and return its version; before a step there is none."""
        if self.way is Way.STEP:
            return Expect.ABSENT
        indexes = (IndexEntry("deadline", self.header.path.encode()), IndexEntry("open", b"1"))
        return await self.store.put(Put(self.header, b"open", Expect.ABSENT, indexes))

    def ended(self, version: int | Expect) -> Put:
        """Return the put that commits the header which has this version."""
        return Put(self.header, b"committed", version, (IndexEntry("ended", self.header.path.encode()),))

    async def end(self, joined: IDatabaseTransaction, version: int | Expect) -> int:
        """Commit the header in the joined transaction, before its COMMIT; return the new version."""
        appends: tuple[LedgerAppend, ...] = ()
        if self.way is Way.STEP:
            appends = (LedgerAppend((await self._ledger()).reference, (Append(b"message"),)),)
        step = Step(puts=(self.ended(version),), appends=appends)
        return (await self.store.apply(step, joined)).records[0].version

    async def join_and_end(self, given: object, version: int | Expect) -> None:
        """Join and write the header, of which one must fail."""
        joined = await self.store.join(given)
        try:
            await self.end(joined, version)
        finally:
            await joined.rollback()

    async def state(self) -> bytes:
        """Return the value of the header; a committed step has its entry, and no other step has one."""
        record = await self.store.get(self.header)
        if self.way is not Way.STEP:
            assert record is not None
            return bytes(record.value)
        state = b"open" if record is None else bytes(record.value)
        tail = await (await self._ledger()).tail()
        found = await (await self._ledger()).read(EntryRange(EARLIEST, tail.last_confirmed), Limit(9))
        assert [one.data for one in found] == ([b"message"] if state == b"committed" else [])
        return state

    async def _ledger(self) -> IManagedLedger:
        assert self._ledgers is not None
        name = self.header.path.strip("/")
        if name not in self._opened:
            # Once, because it waits for the locks of a step.
            self._opened[name] = await self._ledgers.create(name)
        return self._opened[name]

    async def rows(self) -> int:
        """Return the number of rows of the application."""
        return int(await asked(self.url, "SELECT count(*) FROM mine"))


async def asked(url: str, statement: str) -> Any:
    """Return the value that a statement finds over a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def _driver_url(url: str, driver: str) -> str:
    return urlsplit(url)._replace(scheme=f"postgresql+{driver}").geturl()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(url)
    try:
        yield Opened(connection, connection.execute, begins=True)
    finally:
        connection.terminate()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Opened]:
    pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
    try:
        async with pool.acquire() as connection:
            yield Opened(connection, connection.execute, begins=True)
    finally:
        pool.terminate()


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Opened]:
    connection = await psycopg.AsyncConnection.connect(url)
    try:
        yield Opened(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Opened]:
    connection = psycopg.connect(url, row_factory=psycopg.rows.dict_row)

    async def run(statement: str) -> None:
        connection.execute(statement)

    try:
        yield Opened(connection, run)
    finally:
        connection.close()


@asynccontextmanager
async def _psycopg_autocommit(url: str) -> AsyncIterator[Opened]:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    try:
        yield Opened(connection, connection.execute, begins=True)
    finally:
        await connection.close()


def _sqlalchemy_async(driver: str, *, is_session: bool, **options: Any) -> Any:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Opened]:
        engine = create_async_engine(_driver_url(url, driver), **options)
        try:
            async with AsyncSession(engine) if is_session else engine.connect() as given:
                yield Opened(
                    given, lambda statement: given.execute(text(statement)), begins="isolation_level" in options
                )
        finally:
            await engine.dispose()

    return opened


def _sqlalchemy(driver: str, *, is_session: bool, **options: Any) -> Any:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Opened]:
        engine = create_engine(_driver_url(url, driver), **options)
        try:
            with Session(engine) if is_session else engine.connect() as given:

                async def run(statement: str) -> None:
                    given.execute(text(statement))

                yield Opened(given, run)
        finally:
            engine.dispose()

    return opened


KINDS: dict[str, Any] = {
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "psycopg-async": _psycopg_async,
    "psycopg": _psycopg,
    "psycopg-autocommit": _psycopg_autocommit,
    "AsyncSession-asyncpg": _sqlalchemy_async("asyncpg", is_session=True),
    "AsyncSession-psycopg": _sqlalchemy_async("psycopg", is_session=True),
    "AsyncConnection-asyncpg": _sqlalchemy_async("asyncpg", is_session=False),
    "AsyncConnection-psycopg": _sqlalchemy_async("psycopg", is_session=False),
    "AsyncSession-autocommit": _sqlalchemy_async("asyncpg", is_session=True, isolation_level="AUTOCOMMIT"),
    "AsyncConnection-autocommit": _sqlalchemy_async("psycopg", is_session=False, isolation_level="AUTOCOMMIT"),
    "Session": _sqlalchemy("psycopg", is_session=True),
    "Connection": _sqlalchemy("psycopg", is_session=False),
}
