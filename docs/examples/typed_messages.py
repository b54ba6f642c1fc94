"""Orders are sent and received as objects; a second version of their type is introduced while the first is in use."""

import asyncio

import msgspec

import txnframework
from txnframework.errors import UndecodableMessage
from txnframework.serializers import MsgspecJson


class OrderV1(msgspec.Struct):
    customer: str
    euros: int


class Order(msgspec.Struct):
    customer: str
    cents: int


V1 = MsgspecJson(OrderV1, schema="order", version=1)
V2 = MsgspecJson(Order, schema="order", version=2)


def upgraded(order: OrderV1 | Order) -> Order:
    """Return an order of any version as the present one."""
    match order:
        case OrderV1(customer=customer, euros=euros):
            return Order(customer, cents=euros * 100)
        case Order():
            return order


async def main() -> None:
    async with txnframework.open() as client:
        await client.create_topic("typed-orders", exist_ok=True)
        async with client.producer("typed-orders", serializer=V1) as earlier:
            await earlier.send(OrderV1("ada", euros=2), key=b"ada")
        async with client.producer("typed-orders", serializer=V2) as present:
            await present.send(Order("bob", cents=350), key=b"bob")
        async with client.producer("typed-orders") as raw:
            await raw.send(b"not an order")
        async with client.consumer("typed-orders", "billing", start="earliest", serializer=V1 | V2) as orders:
            for _ in range(3):
                message = await orders.receive()
                try:
                    order = upgraded(message.content)
                    print(f"{order.customer} pays {order.cents} cents")
                except UndecodableMessage as error:
                    print(error.reason)
                await orders.ack(message)


asyncio.run(main())
