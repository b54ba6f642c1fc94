"""A client whose orders are billed in one step: a row, an invoice, and the acknowledgment of the order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import txnframework
from txnframework import Client, Consumer, Message, MessageID, PlannedAck, PlannedSend, Producer

BILLING = "billing"
PATIENCE_MS = 60_000


class Shop:
    """A client with topics of its own."""

    def __init__(self, client: Client, orders: Producer, invoices: Producer, todo: Consumer, name: str) -> None:
        self.client = client
        self.orders = orders
        self.invoices = invoices
        self.todo = todo
        self.name = name

    async def order(self) -> Message:
        """Send an order, and receive it."""
        await self.orders.send(b"order")
        return await self.received()

    async def received(self) -> Message:
        """Receive the next order, or one that comes again."""
        return await self.todo.receive(timeout_ms=PATIENCE_MS)

    def operations(self, order: Message) -> tuple[PlannedSend, PlannedAck]:
        """Return what bills an order besides its row."""
        return self.invoices.outgoing(b"invoice"), self.todo.acknowledging(order)

    async def bill(self, order: Message, connection: object) -> tuple[MessageID, ...]:
        """Commit the rows of the connection with the invoice and the acknowledgment."""
        return await self.client.transact(*self.operations(order), commit_with=connection)

    async def counts(self) -> tuple[int, int]:
        """Return how many invoices are committed, and how many orders are not acknowledged."""
        async with await self.client.reader(invoices_of(self.name)) as reader:
            invoices = len([one async for one in reader])
        await self.client.maintain()
        return invoices, len(await self.client.peek(orders_of(self.name), BILLING, 1_000))


def orders_of(name: str) -> str:
    """Return the name of a shop's topic of orders."""
    return f"orders-{name}"


def invoices_of(name: str) -> str:
    """Return the name of a shop's topic of invoices."""
    return f"invoices-{name}"


@asynccontextmanager
async def shop(url: str, name: str, segments: int = 1, **config: Any) -> AsyncIterator[Shop]:
    """Open a client on the stores of one database, and make topics with this name."""
    stores = {"metadata": {"url": url}, "ledger": {"url": url}}
    stores = {section: {**values, **config.pop(section, {})} for section, values in stores.items()}
    async with txnframework.open({**stores, **config}) as client:
        await client.create_topic(orders_of(name), segments=segments)
        await client.create_topic(invoices_of(name), segments=segments)
        async with (
            await client.producer(orders_of(name)) as orders,
            await client.producer(invoices_of(name)) as invoices,
            await client.consumer(orders_of(name), BILLING, type="shared", start="earliest") as todo,
        ):
            yield Shop(client, orders, invoices, todo, name)
