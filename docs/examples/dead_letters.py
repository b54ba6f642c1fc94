import asyncio

import txnframework

CONFIG = {"metadata": {"url": "memory:"}, "ledger": {"url": "memory:"}, "subscriptions": {"redelivery_delay_ms": 10}}


async def main() -> None:
    async with txnframework.open(CONFIG) as client:
        await client.create_topic("orders")
        await client.create_topic("orders-billing-DLQ")
        await (await client.producer("orders")).send(b"three apples, or four")

        rule = txnframework.DeadLetter(redeliveries_max=2)
        billing = await client.consumer("orders", "billing", type="failover", start="earliest", dead_letter=rule)
        for _ in range(3):
            order = await billing.receive()
            print(f"delivery {order.redelivery_count + 1} of {order.value.decode()}")
            await billing.nack(order)

        letters = await client.consumer("orders-billing-DLQ", "people", start="earliest")
        looking = asyncio.ensure_future(billing.receive())  # letters are moved while somebody receives
        letter = await letters.receive()
        print(f"given up after {letter.headers['dead-letter-deliveries'].decode()} deliveries")
        looking.cancel()


asyncio.run(main())
