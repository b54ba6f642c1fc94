"""
A service: every order becomes an invoice, exactly once, however often the service is killed.

The topics orders and invoices must exist.
"""

import asyncio

import txnframework
from txnframework import ReceiveTimeout


async def main() -> None:
    async with (
        txnframework.open() as client,
        client.consumer("orders", "billing", start="earliest") as orders,
        client.producer("invoices") as invoices,
    ):
        done = 0
        while True:
            try:
                received = await orders.receive_many(messages_max=100, timeout_ms=1_000)
            except ReceiveTimeout:
                break  # a real service would go on waiting
            async with client.transaction() as txn:
                for order in received:
                    await invoices.send(b"invoice for " + order.value, key=order.key, txn=txn)
                await orders.ack(*received, txn=txn)
            done += len(received)
        print(f"{done} orders billed")


asyncio.run(main())
