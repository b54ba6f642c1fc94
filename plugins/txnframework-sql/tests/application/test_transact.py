"""Rows, messages and acknowledgments of ``Client.transact`` take effect by one COMMIT in a SQLite file."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from sqlite3 import IntegrityError
from typing import Any

import pytest
from one_step import shop
from sqlalchemy.exc import IntegrityError as SqlalchemyIntegrityError
from sqlite_connections import INSERT, application


async def test_one_commit(tmp_path: Path, kind: Any) -> None:
    """A deferred constraint undoes everything; the order comes again, and is billed with the same connection."""
    async with AsyncExitStack() as stack:
        mine = await stack.enter_async_context(application(tmp_path))
        opened = await stack.enter_async_context(shop(f"sqlite:///{mine.path}", "a"))
        async with kind(mine.path) as connection:
            await connection.run("CREATE TABLE parts (of INTEGER REFERENCES mine (id) DEFERRABLE INITIALLY DEFERRED)")
            await connection.commit()
            order = await opened.order()
            await connection.run("PRAGMA foreign_keys = ON")
            await connection.commit()
            for statement in ("BEGIN", INSERT, "INSERT INTO parts VALUES (7)"):
                await connection.run(statement)
            with pytest.raises((IntegrityError, SqlalchemyIntegrityError)):
                await opened.bill(order, connection.given)
            assert (mine.rows(), *await opened.counts()) == (0, 0, 1)
            order = await opened.received()
            for statement in ("BEGIN", INSERT):
                await connection.run(statement)
            await opened.bill(order, connection.given)
            assert (mine.rows(), *await opened.counts()) == (1, 1, 0)
