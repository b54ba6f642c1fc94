"""Connections of an application of every kind, to the file of a store."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction
from txnframework.model import Expect, IndexEntry, Key, Put, Step
from txnframework_sql import MetadataOptions, open_metadata_store

pytest.importorskip("aiosqlite")

INSERT = "INSERT INTO mine (text) VALUES ('row')"
HEADER = Key("/txn/1/header", "txn-1")
OPEN = Put(HEADER, b"open", Expect.ABSENT, (IndexEntry("deadline", b"1"), IndexEntry("state", b"open")))
PATIENCE_S = 60


def ended(version: int) -> Put:
    """Return the put that commits the header which has this version."""
    return Put(HEADER, b"committed", version, (IndexEntry("state", b"ended"),))


@dataclass
class Opened:
    """A connection that the application gives, and how its statements are executed."""

    given: Any
    run: Callable[[str], Awaitable[Any]]

    async def commit(self) -> None:
        """Commit, as the application would."""
        ending = self.given.commit()
        if inspect.isawaitable(ending):
            await ending


@dataclass
class Application:
    """A store, and a table of the application in its file."""

    path: Path
    store: ICoCommitStore

    async def begun(self) -> int:
        """Write the open header; return its version."""
        return await self.store.put(OPEN)

    async def end(self, joined: IDatabaseTransaction, version: int) -> int:
        """Commit the header in the joined transaction, before its COMMIT; return the new version."""
        (record,) = (await self.store.apply(Step(puts=(ended(version),)), joined)).records
        return record.version

    async def state(self) -> bytes:
        """Return the value of the header."""
        record = await self.store.get(HEADER)
        assert record is not None
        return bytes(record.value)

    def rows(self) -> int:
        """Return the number of rows of the application."""
        connection = sqlite3.connect(self.path)
        try:
            (found,) = connection.execute("SELECT count(*) FROM mine").fetchone()
            return int(found)
        finally:
            connection.close()


@asynccontextmanager
async def application(directory: Path, **options: Any) -> AsyncIterator[Application]:
    """Open a store, and make the table of the application."""
    path = directory / "txn.db"
    store = await open_metadata_store(f"sqlite:///{path}", SystemEnvironment(), MetadataOptions(**options))
    try:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
        connection.close()
        yield Application(path, store)
    finally:
        await store.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine function, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


def _sqlite3(**options: Any) -> Any:
    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[Opened]:
        connection = sqlite3.connect(path, **options)
        # Rows without positions must not disturb the store.
        connection.row_factory = lambda cursor, row: dict(zip([one[0] for one in cursor.description], row, strict=True))

        async def execute(statement: str) -> None:
            connection.execute(statement)

        try:
            yield Opened(connection, execute)
        finally:
            connection.close()

    return opened


def _sqlalchemy(*, is_session: bool, **options: Any) -> Any:
    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[Opened]:
        engine = create_engine(f"sqlite:///{path}", **options)
        try:
            with Session(engine) if is_session else engine.connect() as given:

                async def execute(statement: str) -> None:
                    given.execute(text(statement))

                yield Opened(given, execute)
        finally:
            engine.dispose()

    return opened


def _sqlalchemy_async(*, is_session: bool, **options: Any) -> Any:
    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[Opened]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", **options)
        try:
            async with AsyncSession(engine) if is_session else engine.connect() as given:
                yield Opened(given, lambda statement: given.execute(text(statement)))
        finally:
            await engine.dispose()

    return opened


KINDS: dict[str, Any] = {
    "sqlite3": _sqlite3(),
    "sqlite3-autocommit": _sqlite3(isolation_level=None),
    "Session": _sqlalchemy(is_session=True),
    "Connection": _sqlalchemy(is_session=False),
    "Connection-autocommit": _sqlalchemy(is_session=False, isolation_level="AUTOCOMMIT"),
    "AsyncSession": _sqlalchemy_async(is_session=True),
    "AsyncConnection": _sqlalchemy_async(is_session=False),
}
