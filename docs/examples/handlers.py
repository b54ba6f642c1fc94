import asyncio
import signal

import txnframework
from txnframework import DeadLetter, Message, PlannedSend

CONFIG = {"metadata": {"url": "memory:"}, "ledger": {"url": "memory:"}, "subscriptions": {"redelivery_delay_ms": 10}}


async def main() -> None:
    async with txnframework.open(CONFIG) as client:
        for topic in ("orders", "invoices", "orders-billing-DLQ"):
            await client.create_topic(topic)
        await (await client.producer("orders")).send_many([b"three apples", b"?", b"a pear"])

        rule = DeadLetter(redeliveries_max=2)
        async with (
            client.consumer("orders", "billing", start="earliest", dead_letter=rule) as orders,
            client.producer("invoices") as invoices,
        ):

            async def bill(order: Message) -> PlannedSend:
                if order.value == b"?":
                    raise ValueError("this is no order")
                print(f"bill {(order.value or b'').decode()}")
                if order.value == b"a pear":
                    orders.stop()  # a service goes on until a signal comes
                return invoices.outgoing(b"invoice for " + (order.value or b""), key=order.key)

            await orders.run(bill, stop_on_signals=(signal.SIGTERM, signal.SIGINT))


asyncio.run(main())
