"""Fencing numbers grow over the ends of leases, sessions, clients and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import LeaseHeld
from txnframework.interfaces import ILease, IMetadataStore
from txnframework_sql import SqlMetadataStore
from txnframework_sql.testing.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from conftest import Stores

TTL_MS = 600


async def take(store: IMetadataStore) -> ILease:
    """Acquire the lease as soon as its holder has lost it."""
    while True:
        try:
            return await store.acquire_lease("a", "me")
        except LeaseHeld as error:
            watch = await store.watch(error.key)
        try:
            return await store.acquire_lease("a", "me")
        except LeaseHeld:
            await watch.changed()
        finally:
            await watch.close()


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
async def test_numbers_grow(stores: Stores, end: Callable[[PostgresServer], None]) -> None:
    """Each acquisition has a higher number than all before: after release, end, expiry and a restart of the server."""
    numbers: list[int] = []
    for _ in range(2):
        async with stores.metadata(session_ttl_ms=TTL_MS) as store:
            lease = await take(store)
            numbers.append(lease.fencing)
            await lease.release()
            # This one ends with its session.
            numbers.append((await take(store)).fencing)
        async with stores.metadata(session_ttl_ms=TTL_MS) as store:
            numbers.append((await take(store)).fencing)
            assert isinstance(store, SqlMetadataStore)
            await asyncio.to_thread(end, stores.server)
            # And this one expires: no process is left to end it.
            await store.abandon()
        await asyncio.to_thread(stores.server.start)
    async with stores.metadata() as store:
        numbers.append((await take(store)).fencing)
    assert numbers == sorted(set(numbers))
