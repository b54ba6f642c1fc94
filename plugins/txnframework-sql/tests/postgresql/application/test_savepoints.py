"""Savepoints of the application in the joined transaction: whose rows they undo, and what they must not undo."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from application_connections import INSERT, KINDS, Application, Opened
from sqlalchemy import event

from txnframework.errors import InvalidInput

Run = Callable[..., None]


async def called(function: Callable[[], Any]) -> Any:
    """Call a method that may be asynchronous."""
    found = function()
    return await found if inspect.isawaitable(found) else found


async def undo_one_row(opened: Opened) -> None:
    """Write a row in a savepoint and roll back to it, as the driver does that."""
    given = opened.given
    if hasattr(given, "begin_nested"):
        nested = await called(given.begin_nested)
        await opened.run(INSERT)
        await called(nested.rollback)
        return
    nested = given.transaction()
    with suppress(ZeroDivisionError):
        if hasattr(nested, "__aenter__"):
            async with nested:
                await opened.run(INSERT)
                raise ZeroDivisionError
        else:
            with nested:
                await opened.run(INSERT)
                raise ZeroDivisionError


async def test_rolled_back_by_the_driver(kind: Any, application: Application) -> None:
    """Only the rows of the savepoint are undone; some drivers keep it on the server, and the put is then inside it."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        for _ in range(2):
            await undo_one_row(opened)
        await opened.run(INSERT)
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (2, b"committed")


@pytest.mark.parametrize("release", ["RELEASE part", "SELECT 1"])
async def test_rolled_back_by_hand(kind: Any, release: str, application: Application) -> None:
    """Savepoints that statements roll back behave in the same way, with RELEASE and without it."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        for statement in (INSERT, "SAVEPOINT part", INSERT, "ROLLBACK TO part", release, INSERT):
            await opened.run(statement)
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (2, b"committed")


async def test_open_at_the_end(kind: Any, application: Application) -> None:
    """An open savepoint that SQLAlchemy knows is refused. A savepoint of another driver is part of the COMMIT."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        if hasattr(opened.given, "begin_nested"):
            await called(opened.given.begin_nested)
            await opened.run(INSERT)
            with pytest.raises(InvalidInput, match="open savepoint"):
                await application.end(joined, version)
            await joined.rollback()
            assert (await application.rows(), await application.state()) == (0, b"open")
        else:
            await opened.run("SAVEPOINT part")
            await opened.run(INSERT)
            await application.end(joined, version)
            await joined.commit()
            assert (await application.rows(), await application.state()) == (1, b"committed")


async def test_open_at_the_beginning(application: Application) -> None:
    """A savepoint that SQLAlchemy knows is refused before the block."""
    await application.begun()
    async with KINDS["AsyncSession-asyncpg"](application.url) as opened, opened.given.begin_nested():
        with pytest.raises(InvalidInput, match="open savepoint"):
            await application.store.join(opened.given)


async def test_older_than_the_block(kind: Any, application: Application) -> None:
    """
    A block that was undone as a whole is refused: its messages would be committed without its rows.

    An older savepoint that is only released does no harm.
    """
    version = await application.begun()
    async with kind(application.url) as opened:
        for undo in ("ROLLBACK TO part", "RELEASE part"):
            if opened.begins:
                await opened.run("BEGIN")
            for statement in (INSERT, "SAVEPOINT part"):
                await opened.run(statement)
            joined = await application.store.join(opened.given)
            await opened.run(INSERT)
            await opened.run(undo)
            if undo.startswith("ROLLBACK"):
                with pytest.raises(InvalidInput, match="older than the block"):
                    await application.end(joined, version)
                await joined.rollback()
                assert (await application.rows(), await application.state()) == (0, b"open")
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (2, b"committed")


async def test_rolled_back_between_the_put_and_the_commit(kind: Any, application: Application) -> None:
    """Another task may do so. The COMMIT is then refused, because it would decide rows without the header."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        for statement in (INSERT, "SAVEPOINT part", INSERT):
            await opened.run(statement)
        await application.end(joined, version)
        await opened.run("ROLLBACK TO part")
        with pytest.raises(InvalidInput, match="while the block ended"):
            await joined.commit()
        await joined.rollback()
        assert (await application.rows(), await application.state()) == (0, b"open")


async def test_rolled_back_by_an_event(application: Application) -> None:
    """SQLAlchemy runs events at the COMMIT; an event that rolls back the put is detected."""
    version = await application.begun()
    async with KINDS["AsyncSession-psycopg"](application.url) as opened:
        joined = await application.store.join(opened.given)
        for statement in (INSERT, "SAVEPOINT part"):
            await opened.run(statement)
        connection = (await opened.given.connection()).sync_connection
        event.listen(connection, "commit", lambda one: one.exec_driver_sql("ROLLBACK TO part"))
        await application.end(joined, version)
        with pytest.raises(InvalidInput, match="while the block ended"):
            await joined.commit()
        await joined.rollback()
        assert (await application.rows(), await application.state()) == (0, b"open")


async def test_of_the_connection_of_a_session(application: Application) -> None:
    """The session does not know it, but the application can still roll it back."""
    version = await application.begun()
    async with KINDS["AsyncSession-asyncpg"](application.url) as opened:
        joined = await application.store.join(opened.given)
        nested = await (await opened.given.connection()).begin_nested()
        await opened.run(INSERT)
        with pytest.raises(InvalidInput, match="open savepoint"):
            await application.end(joined, version)
        await nested.rollback()
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (0, b"committed")
