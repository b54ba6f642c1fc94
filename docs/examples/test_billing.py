"""Tests of a program that uses txnframework: what it sent, what happens after faults, and what happens later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import txnframework
from txnframework import Client, DeadLetter, Message, OutcomeUnknown, State, Transaction, Unavailable
from txnframework.serializers import MsgspecJson
from txnframework.testing import MemoryStores

LETTERS = "orders-billing-DLQ"


async def bill(client: Client) -> txnframework.Transaction:
    """Send an invoice for the next order, and acknowledge the order; this is the program that is tested."""
    async with (
        client.consumer("orders", "billing", start="earliest") as orders,
        client.producer("invoices") as invoices,
    ):
        order = await orders.receive()
        async with client.transaction() as txn:
            await invoices.send(b"invoice for " + order.content, txn=txn)
            await orders.ack(order, txn=txn)
        return txn


async def bill_all(client: Client) -> None:
    """Send an invoice for each order; an order that fails three times becomes a dead letter."""
    rule = DeadLetter(redeliveries_max=2)
    async with (
        client.consumer("orders", "billing", start="earliest", dead_letter=rule) as orders,
        client.producer("invoices") as invoices,
    ):

        async def handle(order: Message, txn: Transaction) -> None:
            await invoices.send(b"invoice for " + order.content, txn=txn)
            if order.content == b"apples":
                raise ValueError("there are no apples")

        await orders.run(handle)


@dataclass
class Order:
    what: str
    pieces: int


ORDERS = MsgspecJson(Order, schema="order", version=1)


async def order_apples(client: Client) -> None:
    await client.create_topic("orders")
    await client.create_topic("invoices")
    async with client.producer("orders") as orders:
        await orders.send(b"apples")


def test_an_invoice_is_sent(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await order_apples(client)
            txn = await bill(client)
            await client.settle(txn.id)  # do not wait for the sweep: an acknowledgment counts when it is settled
            assert (await client.lag("orders", "billing")).messages == 0
        assert [invoice.content for invoice in await txn_stores.read("invoices")] == [b"invoice for apples"]

    asyncio.run(check())


def test_orders_have_a_type(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await client.create_topic("orders")
            async with client.producer("orders", serializer=ORDERS) as orders:
                await orders.send(Order("apples", 3))
            (order,) = await txn_stores.read("orders", serializer=ORDERS)
            assert order.content == Order("apples", 3)

    asyncio.run(check())


def test_an_order_that_always_fails(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open(subscriptions={"redelivery_delay_ms": 0}) as client:
            await order_apples(client)
            await client.create_topic(LETTERS)
            running = asyncio.create_task(bill_all(client))
            async with client.consumer(LETTERS, "test", start="earliest") as letters:
                letter = await letters.receive(timeout_ms=10_000)
            running.cancel()
            assert letter.content == b"apples"
            assert letter.headers["dead-letter-deliveries"] == b"3"  # the first delivery, and two redeliveries
            assert await txn_stores.read("invoices") == []

    asyncio.run(check())


def test_the_reply_to_the_commit_is_lost(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await order_apples(client)
            txn = client.transaction()
            await txn.begin()
            async with client.producer("invoices") as invoices:
                await invoices.send(b"invoice", txn=txn)
            txn_stores.lose_next_commit_reply()
            with pytest.raises(OutcomeUnknown):
                await txn.commit()
            txn_stores.restore()
            assert await client.outcome(txn.id) is State.COMMITTED

    asyncio.run(check())


def test_the_stores_are_unavailable(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await order_apples(client)
            with txn_stores.unavailable(), pytest.raises(Unavailable):
                await client.ping()
            await bill(client)

    asyncio.run(check())


def test_a_transaction_times_out(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await order_apples(client)
            txn = client.transaction(timeout_ms=60_000)
            await txn.begin()
            await txn_stores.advance(120_000)
            assert await client.outcome(txn.id) is State.ABORTED

    asyncio.run(check())


def test_the_process_is_killed_and_another_goes_on(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await order_apples(client)
        async with txn_stores.open() as killed, txn_stores.open() as other:
            orders = await killed.consumer("orders", "billing", start="earliest")
            order = await orders.receive()
            txn = killed.transaction()
            await txn.begin()
            await orders.ack(order, txn=txn)
            txn_stores.kill(killed)
            await bill(other)
        assert len(await txn_stores.read("invoices")) == 1

    asyncio.run(check())
