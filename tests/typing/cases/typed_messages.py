"""Producers and consumers with and without serializers; the marks name what mypy must say of a line."""

from __future__ import annotations

from typing import assert_type

import msgspec

from txnframework import Client, Consumer, Message, Producer, blocking
from txnframework.model import OtherType
from txnframework.serializers import MsgspecJson, PlainText, Serializer


class Order(msgspec.Struct):
    customer: str


class Invoice(msgspec.Struct):
    cents: int


ORDERS = MsgspecJson(Order, schema="order")
EVENTS = ORDERS | MsgspecJson(Invoice, schema="invoice") | PlainText()
assert_type(EVENTS, Serializer[Order | Invoice | str])


async def bytes_as_before(producer: Producer, consumer: Consumer, client: Client) -> None:
    await producer.send(b"value")
    await producer.send(None)
    await producer.send("text")  # refused: Argument 1 to "send" of "Producer" has incompatible type "str"
    message = await consumer.receive()
    assert_type(message, Message)
    assert_type(message, Message[bytes])
    assert_type(message.value, bytes | None)
    assert_type(message.content, bytes)
    assert_type(await client.producer("orders"), Producer[bytes])
    async with client.producer("orders") as plain, client.consumer("orders", "billing") as consumed:
        assert_type(plain, Producer[bytes])
        assert_type(consumed, Consumer[bytes])
    assert_type(await client.consumer("orders", "billing"), Consumer[bytes])
    assert_type(await client.consumer("orders", "billing", stand_by=True, balance=False), Consumer[bytes])


async def typed(client: Client) -> None:
    producer = await client.producer("orders", serializer=ORDERS)
    assert_type(producer, Producer[Order])
    await producer.send(Order("ada"), key=b"ada")
    await producer.send_many([Order("ada"), None])
    await producer.send(b"value")  # refused: Argument 1 to "send" of "Producer" has incompatible type "bytes"
    await producer.send(Invoice(1))  # refused: incompatible type "Invoice"; expected "Order | None"
    consumer = await client.consumer("orders", "billing", serializer=ORDERS)
    assert_type(consumer, Consumer[Order])
    message = await consumer.receive()
    assert_type(message.content, Order)
    assert_type(message.value, bytes | None)
    await consumer.ack(message, message.id)
    async for each in consumer:
        assert_type(each.content.customer, str)
    async for read in await client.reader("orders", serializer=EVENTS):
        assert_type(read.content, Order | Invoice | str)
    await client.consumer("orders", "billing", serializer=Order)  # refused: Argument "serializer" to "consumer"


async def types_of_subscriptions(client: Client, without_await: blocking.Client, name: str) -> None:
    await client.consumer("orders", "billing", type="key_shared")
    await client.consumer("orders", "billing", type=OtherType("relay"))
    await client.consumer("orders", "billing", type=OtherType(name), serializer=ORDERS)
    await client.consumer("orders", "billing", type="keyshared")  # refused: Argument "type" to "consumer"
    await client.consumer("orders", "billing", type=name)  # refused: Argument "type" to "consumer"
    without_await.consumer("orders", "billing", type="key_shared")
    without_await.consumer("orders", "billing", type="keyshared")  # refused: Argument "type" to "consumer"


async def several(client: Client) -> None:
    producer = await client.producer("events", serializer=EVENTS)
    await producer.send("text")
    await producer.send(1)  # refused: incompatible type "int"; expected "Order | Invoice | str | None"
    only_orders: Producer[Order] = producer
    audit = await client.consumer("events", "audit", serializer=EVENTS)
    anything: Consumer[object] = audit
    await only_orders.close()
    await anything.close()


def without_await(client: blocking.Client) -> None:
    with client.producer("orders", serializer=ORDERS) as producer:
        producer.send(Order("ada"))
        producer.send(b"value")  # refused: has incompatible type "bytes"; expected "Order | None"
    with client.consumer("orders", "billing", serializer=ORDERS) as consumer:
        assert_type(consumer.receive().content, Order)
    with client.reader("orders") as reader:
        for message in reader:
            assert_type(message.content, bytes)
