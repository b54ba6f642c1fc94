"""Tests that are coroutines, run by anyio's plugin of pytest, with a client as a fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from txnframework import Client
from txnframework.testing import MemoryStores

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client(txn_stores: MemoryStores) -> AsyncIterator[Client]:
    async with txn_stores.open() as client:
        yield client


async def test_an_order_is_stored(client: Client, txn_stores: MemoryStores) -> None:
    await client.create_topic("orders")
    async with client.producer("orders") as orders:
        await orders.send(b"apples")
    assert [order.content for order in await txn_stores.read("orders")] == [b"apples"]
