"""One COMMIT decides the application's rows and the header, over every kind of connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from application_connections import INSERT, Application, Opened

from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import IndexRange

Run = Callable[..., None]


async def test_both_are_committed(kind: Any, application: Application) -> None:
    """Before the COMMIT, nothing of it is visible; after it, row, header and index entries exist."""
    version = await application.begun()
    async with kind(application.url) as opened:
        watch = await application.store.watch(application.header)
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        written = await application.end(joined, version)
        assert (await application.rows(), await application.state()) == (0, b"open")
        await joined.commit()
        await watch.changed()
        record = await application.store.get(application.header)
        assert record is not None
        assert (record.value, record.version) == (b"committed", written)
        assert await application.rows() == 1
        key = application.header.path.encode()
        for index, found in (("ended", [application.header]), ("deadline", [])):
            page = await application.store.scan_index(IndexRange(index, key, key + b"\0"), 9)
            assert [one.key for one in page.records] == found
        await opened.run("SELECT 1")
        await joined.rollback()


async def test_nothing_is_committed(kind: Any, application: Application) -> None:
    """
    A rollback undoes both and may be repeated. A put of an outdated version writes nothing.

    The connection is usable afterwards.
    """
    version = await application.begun()
    async with kind(application.url) as opened:
        for _ in range(2):
            joined = await application.store.join(opened.given)
            await opened.run(INSERT)
            await application.end(joined, version)
            await joined.rollback()
            await joined.rollback()
        assert (await application.rows(), await application.state()) == (0, b"open")
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        aborted = await application.store.put(application.ended(version))
        with pytest.raises(VersionMismatch) as raised:
            await application.end(joined, version)
        assert raised.value.actual == aborted
        await joined.rollback()
        assert await application.rows() == 0


@pytest.mark.parametrize("and_begun_again", [False, True])
async def test_ended_inside_the_block(kind: Any, application: Application, *, and_begun_again: bool) -> None:
    """What the application has committed itself is not joined any more, and its next transaction is left alone."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        await _end(opened)
        if and_begun_again:
            await _begin(opened)
            await opened.run(INSERT)
        with pytest.raises(InvalidInput, match="inside the block"):
            await application.end(joined, version)
        await joined.rollback()
        await _end(opened)
        assert (await application.rows(), await application.state()) == (1 + and_begun_again, b"open")


async def test_asyncpg_after_an_end_inside_the_block(application: Application) -> None:
    """The connection is usable: the driver has forgotten the transaction that it began for the block."""
    version = await application.begun()
    connection = await asyncpg.connect(application.url)
    try:
        joined = await application.store.join(connection)
        await connection.execute(f"{INSERT}; COMMIT")
        with pytest.raises(InvalidInput, match="inside the block"):
            await application.end(joined, version)
        await joined.rollback()
        async with connection.transaction():
            await connection.execute(INSERT)
        assert await application.rows() == 2
        joined = await application.store.join(connection)
        await connection.execute(INSERT)
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (3, b"committed")
    finally:
        await connection.close()


async def _begin(opened: Opened) -> None:
    if opened.begins:
        await opened.run("BEGIN")


async def _end(opened: Opened) -> None:
    if opened.begins:
        await opened.run("COMMIT")
        return
    ending = opened.given.commit()
    if inspect.isawaitable(ending):
        await ending
