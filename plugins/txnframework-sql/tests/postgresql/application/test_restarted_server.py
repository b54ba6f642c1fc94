"""A server that is killed between the put and the COMMIT."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
from application_connections import INSERT, Application, asked

from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model import Key, Put

if TYPE_CHECKING:
    from conftest import Stores


async def test_killed_before_and_after_the_commit(stores: Stores) -> None:
    """What was confirmed is there after the restart, and what was not committed is gone, row and header alike."""
    async with stores.metadata() as store:
        await asked(stores.url, "CREATE TABLE mine (id serial PRIMARY KEY, text text NOT NULL)")
        for number, commits in enumerate((False, True)):
            application = Application(stores.url, store, Key(f"/header/{number}", "t"))  # type: ignore[arg-type]
            version = await application.begun()
            connection = await asyncpg.connect(stores.url)
            joined = await application.store.join(connection)
            await connection.execute(INSERT)
            await application.end(joined, version)
            if commits:
                await joined.commit()
            await asyncio.to_thread(stores.server.kill)
            if not commits:
                with pytest.raises(OutcomeUnknown):
                    await joined.commit()
            await joined.rollback()
            await asyncio.to_thread(stores.server.start)
            aborting = Put(application.header, b"aborted", version)
            if commits:
                with pytest.raises(VersionMismatch):
                    await store.put(aborting)
            else:
                await store.put(aborting)
            assert (await application.rows(), await application.state()) == (
                (1, b"committed") if commits else (0, b"aborted")
            )
