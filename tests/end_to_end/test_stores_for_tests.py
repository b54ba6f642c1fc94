"""The stores for the tests of programs: faults happen when they are ordered, and only then."""

from __future__ import annotations

import asyncio

import pytest

import txnframework
from txnframework import Closed, InvalidInput, OutcomeUnknown, State, Unavailable
from txnframework.serializers import PlainText
from txnframework.testing import MemoryStores


async def test_a_lost_reply_is_that_of_a_commit(txn_stores: MemoryStores) -> None:
    """Sends, acknowledgments and begins get theirs; after the fault, everything works again."""
    async with txn_stores.open() as client:
        await client.create_topic("orders")
        txn_stores.lose_next_commit_reply()
        async with await client.producer("orders", serializer=PlainText()) as orders:
            txn = client.transaction()
            await txn.begin()
            await orders.send("one", txn=txn)
            with pytest.raises(OutcomeUnknown):
                await txn.commit()
            with pytest.raises(Unavailable):
                await client.ping()
            txn_stores.restore()
            await txn.commit()
            async with client.transaction() as second:
                await orders.send("two", txn=second)
        assert [await client.outcome(one.id) for one in (txn, second)] == [State.COMMITTED] * 2
    read = await txn_stores.read("orders", serializer=PlainText())
    assert [one.content for one in read] == ["one", "two"]


async def test_a_fault_that_is_taken_back(txn_stores: MemoryStores) -> None:
    async with txn_stores.open() as client:
        txn_stores.lose_next_commit_reply()
        txn_stores.restore()
        async with client.transaction() as txn:
            pass
        assert await client.outcome(txn.id) is State.COMMITTED


async def test_a_killed_client(txn_stores: MemoryStores) -> None:
    """Answers nothing any more, and leaving its block does no harm; its transaction is aborted by others."""
    async with txn_stores.open() as other:
        async with txn_stores.open() as killed:
            txn = killed.transaction()
            await txn.begin()
            txn_stores.kill(killed)
            with pytest.raises(Closed):
                await killed.ping()
        while await other.outcome(txn.id) is State.OPEN:
            await txn_stores.advance(1_000)
        assert await other.outcome(txn.id) is State.ABORTED


async def test_clients_of_other_stores_are_not_killed(txn_stores: MemoryStores, sqlite: object) -> None:
    async with sqlite.open() as client:  # type: ignore[attr-defined]
        with pytest.raises(InvalidInput, match="cannot be killed here"):
            txn_stores.kill(client)


async def test_time_passes_by_itself_too(txn_stores: MemoryStores) -> None:
    """So a wait with a timeout ends in a test that does not advance the clock."""
    async with txn_stores.open() as client:
        await client.create_topic("orders")
        async with await client.consumer("orders", "billing") as consumer:
            with pytest.raises(txnframework.ReceiveTimeout):
                await consumer.receive(timeout_ms=10)
            waiting = asyncio.ensure_future(consumer.receive(timeout_ms=3_600_000))
            await txn_stores.advance(3_600_001)
            with pytest.raises(txnframework.ReceiveTimeout):
                await waiting


def test_without_await(txn_stores: MemoryStores) -> None:
    with txn_stores.open_blocking() as client:
        client.create_topic("orders")
        with client.producer("orders") as orders, txn_stores.unavailable(), pytest.raises(Unavailable):
            orders.send(b"one")
        with client.reader("orders") as reader:
            assert list(reader) == []


def test_each_test_has_its_own(txn_stores: MemoryStores) -> None:
    assert txn_stores.url != MemoryStores().url
