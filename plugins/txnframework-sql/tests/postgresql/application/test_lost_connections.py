"""A connection that the server ends is no mistake of the application: the error says to repeat the block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from application_connections import INSERT, Application, Opened, asked
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import txnframework
from txnframework.errors import InvalidInput, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.model import Expect, Put

Run = Callable[..., None]

_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, psycopg.Error, SQLAlchemyError)


async def _mark(opened: Opened) -> None:
    """Make the server process of the connection known to ``_end``."""
    await opened.run("SET application_name = 'lost'")
    if _can_connect_again(opened.given) or not opened.begins:
        await _call(opened.given.commit)


def _can_connect_again(given: object) -> bool:
    return type(given).__module__.startswith("sqlalchemy")


async def _end(application: Application) -> None:
    """End the server process of the connection, and wait until it is gone."""
    ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'lost'"
    assert await asked(application.url, ended) is True


async def _notice(opened: Opened) -> None:
    with pytest.raises(_DRIVER_ERRORS):
        await opened.run("SELECT 1")


async def _call(method: Callable[[], Any]) -> None:
    found = method()
    if inspect.isawaitable(found):
        await found


async def _lost(application: Application, given: object, version: int | Expect) -> None:
    """Expect that the loss is found, before a step at the latest."""
    with pytest.raises(Unavailable, match=r"is lost .*repeat the block with an open connection"):
        await application.join_and_end(given, version)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_noticed", [False, True])
async def test_before_the_block(kind: Any, application: Application, *, is_open: bool, is_noticed: bool) -> None:
    """
    The block cannot begin, however often it is tried, until an object that can connect again has done so.

    It makes no difference whether a transaction is open, and whether the driver has noticed the loss.
    """
    version = await application.begun()
    async with kind(application.url) as opened:
        await _mark(opened)
        if is_open:
            await opened.run("BEGIN" if opened.begins else "SELECT 1")
        await _end(application)
        if is_noticed:
            await _notice(opened)
        await _lost(application, opened.given, version)
        if _can_connect_again(opened.given):
            await _call(opened.given.rollback)
            joined = await application.store.join(opened.given)
            await opened.run(INSERT)
            await application.end(joined, version)
            await joined.commit()
            assert (await application.rows(), await application.state()) == (1, b"committed")
        else:
            await _lost(application, opened.given, version)


async def test_no_transaction_is_left_behind(kind: Any, application: Application) -> None:
    """If the block could not begin, an object that can connect again does so without a rollback of the program."""
    version = await application.begun()
    async with kind(application.url) as opened:
        if not _can_connect_again(opened.given):
            return
        await _mark(opened)
        await _end(application)
        await _lost(application, opened.given, version)
        joined = await application.store.join(opened.given)
        await joined.rollback()


@pytest.mark.parametrize("is_noticed", [False, True])
async def test_before_the_put(kind: Any, application: Application, *, is_noticed: bool) -> None:
    """The put raises Unavailable, and nothing is committed."""
    version = await application.begun()
    async with kind(application.url) as opened:
        await _mark(opened)
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        await _end(application)
        if is_noticed:
            await _notice(opened)
        with pytest.raises(Unavailable, match=r"is lost .*nothing was committed"):
            await application.end(joined, version)
        await joined.rollback()
        await joined.rollback()
    assert (await application.rows(), await application.state()) == (0, b"open")


@pytest.mark.parametrize("is_noticed", [False, True])
async def test_before_the_commit(kind: Any, application: Application, *, is_noticed: bool) -> None:
    """The outcome is unknown to the caller until its attempt to abort succeeds."""
    version = await application.begun()
    async with kind(application.url) as opened:
        await _mark(opened)
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        await application.end(joined, version)
        await _end(application)
        if is_noticed:
            await _notice(opened)
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await joined.commit()
        await joined.rollback()
    with suppress(VersionMismatch):
        await application.store.put(Put(application.header, b"aborted", version))
    assert (await application.rows(), await application.state()) == (0, b"aborted")


class _Base(DeclarativeBase):
    pass


class _Mine(_Base):
    __tablename__ = "mine"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


async def test_rows_that_a_session_has_not_written(application: Application) -> None:
    """The put writes them first. A loss raises Unavailable then, too; a row that is refused raises its own error."""
    version = await application.begun()
    engine = create_async_engine(application.url.replace("postgresql:", "postgresql+asyncpg:", 1))
    try:
        async with AsyncSession(engine) as session:
            joined = await application.store.join(session)
            session.add(_Mine(text=None))
            with pytest.raises(SQLAlchemyError, match="null value"):
                await application.end(joined, version)
            await joined.rollback()
            await _mark(Opened(session, lambda statement: session.execute(text(statement))))
            joined = await application.store.join(session)
            session.add(_Mine(text="row"))
            await _end(application)
            with pytest.raises(Unavailable, match="AsyncSession is lost"):
                await application.end(joined, version)
            await joined.rollback()
    finally:
        await engine.dispose()
    assert (await application.rows(), await application.state()) == (0, b"open")


async def test_closed_by_the_program(application: Application) -> None:
    """
    The drivers psycopg and SQLAlchemy say who closed a connection, so that is a mistake of the program.

    asyncpg does not, and the error names both causes.
    """
    await application.begun()
    closed = await psycopg.AsyncConnection.connect(application.url)
    await closed.close()
    with pytest.raises(InvalidInput, match="is closed; pass an open one"):
        await application.store.join(closed)
    own = await asyncpg.connect(application.url)
    await own.close()
    async with asyncpg.create_pool(application.url, min_size=0) as pool:
        async with pool.acquire() as returned:
            pass
        for one in (own, returned):
            with pytest.raises(Unavailable, match="the server ended it, or the program closed it or returned it"):
                await application.store.join(one)


async def test_a_client_raises_at_once(application: Application) -> None:
    """A connection that is lost stays lost, so the client does not try again to join its transaction."""
    own = await asyncpg.connect(application.url)
    await own.close()
    # Trying so often again would take minutes.
    retries = {"client": {"retries_max": 100}}
    stores = {"metadata": {"url": application.url}, "ledger": {"url": application.url}}
    async with txnframework.open({**stores, **retries}) as client, asyncio.timeout(60):
        with pytest.raises(Unavailable, match="is lost"):
            await client.transaction(commit_with=own).begin()
