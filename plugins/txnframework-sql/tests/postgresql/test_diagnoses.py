"""What the metadata store on PostgreSQL finds out about its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from txnframework.interfaces import IDiagnosable

if TYPE_CHECKING:
    from conftest import Stores

DAY_MS = 86_400_000


async def test_a_transaction_with_a_snapshot_that_stays_open(stores: Stores) -> None:
    """It is named with its session, while it is open and old enough; a transaction without a snapshot is not."""
    reading = await asyncpg.connect(stores.url, server_settings={"application_name": "report"})
    idle = await asyncpg.connect(stores.url)
    try:
        async with stores.metadata() as store:
            assert IDiagnosable.providedBy(store)
            assert await store.diagnose(0) == ()
            async with idle.transaction(), reading.transaction(isolation="repeatable_read"):
                await reading.fetch("SELECT 1")
                assert await store.diagnose(DAY_MS) == ()
                (found,) = await store.diagnose(0)
                session = reading.get_server_pid()
                assert f"session {session} of " in found.found
                assert "report" in found.found
                assert found.remedy.endswith(f"pg_terminate_backend({session})")
            assert await store.diagnose(0) == ()
    finally:
        await reading.close()
        await idle.close()
