"""Handle many orders at a time, each in a transaction of its own: the invoice and the acknowledgment, or neither."""

import asyncio

import txnframework

ORDERS, INVOICES = "persistent://public/default/orders", "persistent://public/default/invoices"
COUNT = 64


async def main() -> None:
    async with txnframework.open("txnframework.toml") as client:
        for topic in (ORDERS, INVOICES):
            await client.create_topic(topic, exist_ok=True)
        await (await client.producer(ORDERS)).send_many([f"order {number}".encode() for number in range(COUNT)])
        invoices = await client.producer(INVOICES)
        async with client.consumer(ORDERS, "billing", start="earliest") as consumer:
            orders = [await consumer.receive() for _ in range(COUNT)]

            async def handle(order: txnframework.Message) -> None:
                async with client.transaction(domain="persistent") as txn:
                    await invoices.send(b"invoice for " + order.value, txn=txn)
                    await consumer.ack(order, txn=txn)

            await asyncio.gather(*map(handle, orders))
    print(f"{COUNT} orders handled")


asyncio.run(main())
