"""Which errors a program retries, and at which level."""

from __future__ import annotations

import asyncio
import logging

from txnframework import Client, Conflict, Consumer, Message, OutcomeUnknown, Producer, Transaction, Unavailable
from txnframework.testing import MemoryStores

PAUSE_S = 0.01
log = logging.getLogger(__name__)


async def commit(txn: Transaction) -> None:
    """Commit, and repeat the commit until it is known whether it took effect."""
    while True:
        try:
            await txn.commit()
            return
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(PAUSE_S)


async def give_back(orders: Consumer, order: Message) -> None:
    """Request redelivery; the store may be unavailable for a while."""
    while True:
        try:
            await orders.nack(order)
            return
        except Unavailable:
            await asyncio.sleep(PAUSE_S)


async def work(client: Client, orders: Consumer, invoices: Producer) -> None:
    """Process orders until the consumer is closed; an order that fails is delivered again."""
    async for order in orders:
        try:
            async with client.transaction() as txn:
                await invoices.send(b"invoice for " + order.content, txn=txn)
                await orders.ack(order, txn=txn)
        except (Unavailable, OutcomeUnknown, Conflict) as error:
            log.warning("the order %s is tried again: %s", order.id, error)
            await give_back(orders, order)


def test_a_commit_whose_reply_was_lost(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open() as client:
            await client.create_topic("orders")
            async with client.producer("orders") as orders, client.transaction() as txn:
                await orders.send(b"apples", txn=txn)
                txn_stores.lose_next_commit_reply()
                committing = asyncio.ensure_future(commit(txn))
                await asyncio.sleep(5 * PAUSE_S)
                assert not committing.done()
                txn_stores.restore()
                await committing
        assert len(await txn_stores.read("orders")) == 1

    asyncio.run(check())


def test_each_order_gets_one_invoice_whatever_fails(txn_stores: MemoryStores) -> None:
    async def check() -> None:
        async with txn_stores.open(subscriptions={"redelivery_delay_ms": 1}) as client:
            await client.create_topic("orders")
            await client.create_topic("invoices")
            async with (
                client.producer("orders") as orders,
                client.producer("invoices") as invoices,
                client.consumer("orders", "billing", type="shared") as todo,
            ):
                working = asyncio.ensure_future(work(client, todo, invoices))
                for number in range(10):
                    await orders.send(b"%d" % number)
                    txn_stores.lose_next_commit_reply()
                    await asyncio.sleep(3 * PAUSE_S)
                    txn_stores.restore()
                async with client.reader("invoices", follow=True) as reader:
                    seen = aiter(reader)
                    for _ in range(10):
                        await anext(seen)
                await todo.close()
                await working
        found = sorted(message.content for message in await txn_stores.read("invoices"))
        assert found == [b"invoice for %d" % number for number in range(10)]

    asyncio.run(check())
