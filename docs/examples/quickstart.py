"""An order becomes an invoice: sent and acknowledged together, or not at all."""

import asyncio

import txnframework


async def main() -> None:
    async with txnframework.open() as client:
        await client.create_topic("orders", segments=2, exist_ok=True)
        await client.create_topic("invoices", exist_ok=True)
        async with client.producer("orders") as orders:
            await orders.send(b"three apples", key=b"ada")
        async with (
            client.consumer("orders", "billing", start="earliest") as todo,
            client.producer("invoices") as invoices,
        ):
            order = await todo.receive()
            async with client.transaction() as txn:
                await invoices.send(b"invoice for " + order.value, txn=txn)
                await todo.ack(order, txn=txn)
        async for invoice in await client.reader("invoices"):
            print(invoice.value.decode())


asyncio.run(main())
