"""Typed messages: contents are sent and received through serializers, and a bad message harms only itself."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from txnframework import DeadLetter, InvalidInput
from txnframework.errors import TransactionHasFailedOperations, UndecodableMessage
from txnframework.serializers import SCHEMA_HEADER, MsgspecJson, MsgspecMessagePack, PlainJson

if TYPE_CHECKING:
    from conftest import Stores


class OrderV1(msgspec.Struct):
    customer: str


class Order(msgspec.Struct):
    customer: str
    cents: int


V1, V2 = MsgspecJson(OrderV1, schema="order", version=1), MsgspecMessagePack(Order, schema="order", version=2)


async def test_contents_are_sent_and_received(stores: Stores) -> None:
    """In a transaction or not, alone or several, by consumers and readers; the raw value stays there."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        async with (
            await client.producer("orders", serializer=V2) as orders,
            await client.consumer("orders", "billing", serializer=V2) as consumer,
        ):
            async with client.transaction() as txn:
                await orders.send(Order("ada", 1), key=b"k", headers={"trace": b"7"}, txn=txn)
                await orders.send_many([Order("bob", 2), Order("eve", 3)], key=b"k", txn=txn)
            received = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
            assert [one.content for one in received] == [Order("ada", 1), Order("bob", 2), Order("eve", 3)]
            assert received[0].value == V2.encode(Order("ada", 1))
            assert received[0].headers == {"trace": b"7", SCHEMA_HEADER: b"order:2"}
            assert received[0].content is received[0].content
            await consumer.ack(*received)
        async with await client.reader("orders", serializer=V2) as reader:
            assert [one.content.cents async for one in reader] == [1, 2, 3]
        raw = await client.reader("orders")
        assert [(one.schema_id, one.content) async for one in raw] == [("order:2", one.value) for one in received]


def test_without_await(memory: Stores) -> None:
    """The blocking facade takes the same serializers."""
    with memory.open_blocking() as client:
        client.create_topic("orders")
        with client.consumer("orders", "billing", serializer=V1 | V2) as consumer:
            with client.producer("orders", serializer=V1 | V2) as orders:
                orders.send_many([OrderV1("ada"), Order("bob", 2), None], key=b"k")
            received = consumer.receive_many(messages_max=3)
            assert [one.content for one in received[:2]] == [OrderV1("ada"), Order("bob", 2)]
            assert received[2].value is None
        with client.reader("orders", serializer=V1 | V2) as reader:
            assert next(iter(reader)).content == OrderV1("ada")


async def test_versions_of_a_schema(memory: Stores) -> None:
    """Each message is decoded by the serializer for its schema id, also messages that share an entry."""
    async with memory.open() as client:
        await client.create_topic("orders")
        async with await client.producer("orders", serializer=V1 | V2) as orders:
            ids = await orders.send_many([OrderV1("ada"), Order("bob", 2), OrderV1("eve")])
        assert len({one.position.entry for one in ids}) == 1
        reader = await client.reader("orders", serializer=V2 | V1)
        assert [one.content async for one in reader] == [OrderV1("ada"), Order("bob", 2), OrderV1("eve")]


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b'{"customer":7}', {SCHEMA_HEADER: b"order:1"}, "it does not fit OrderV1 at $.customer"),
        (b"{}", {SCHEMA_HEADER: b"order:9"}, "the serializer decodes order:1"),
        (b"{}", {SCHEMA_HEADER: b"\xff\x1b"}, "the serializer decodes order:1"),
        (b"{}", {}, "the serializer decodes order:1"),
        (None, {}, "it is a null, which has no content and deletes its key; its value is None"),
    ],
)
async def test_a_message_that_cannot_be_decoded(
    memory: Stores, value: bytes | None, headers: dict[str, bytes], reason: str
) -> None:
    """Is received and acknowledged; only its content raises, one error with its place, without its value."""
    async with memory.open() as client:
        await client.create_topic("orders")
        async with (
            await client.producer("orders") as raw,
            await client.consumer("orders", "billing", serializer=V1) as consumer,
        ):
            await raw.send(value, headers=headers)
            message = await consumer.receive(timeout_ms=60_000)
            with pytest.raises(UndecodableMessage) as raised:
                _ = message.content
            error = raised.value
            assert (error.topic, error.segment, error.position, error.reason) == (
                message.topic,
                message.id.segment,
                message.id.position,
                reason,
            )
            assert error.schema_id == message.schema_id
            assert str(message.id.position) in str(error)
            assert str(error).isprintable()
            assert error.__cause__ is None
            assert error.__context__ is None
            await consumer.ack(message)


async def test_an_error_never_shows_the_value(memory: Stores) -> None:
    """Neither itself nor in its traceback, whatever the serializer raised."""
    async with memory.open() as client:
        await client.create_topic("orders")
        async with await client.producer("orders") as raw:
            await raw.send(b'{"customer":["hunter2"]}', headers={SCHEMA_HEADER: b"order:1"})
        (message,) = [one async for one in await client.reader("orders", serializer=V1)]
        with pytest.raises(UndecodableMessage) as raised:
            _ = message.content
        assert "hunter2" not in "".join(traceback.format_exception(raised.value))


async def test_dead_letters_keep_the_schema(memory: Stores) -> None:
    """A consumer of the dead letters decodes them with the same serializer."""
    async with memory.open() as client:
        await client.create_topic("orders")
        letters = DeadLetter(0, "letters")
        async with (
            await client.producer("orders", serializer=V2) as orders,
            await client.consumer("orders", "billing", dead_letter=letters, serializer=V2) as consumer,
        ):
            await orders.send(Order("ada", 1))
            await consumer.nack(await consumer.receive(timeout_ms=60_000))
            await client.create_topic("letters", exist_ok=True)
            async with await client.consumer("letters", "people", start="earliest", serializer=V2) as people:
                waiting = people.receive(timeout_ms=60_000)
                with pytest.raises(Exception, match="no message within"):
                    await consumer.receive(timeout_ms=100)
                assert (await waiting).content == Order("ada", 1)


async def test_what_is_refused(memory: Stores) -> None:
    """What the serializer does not encode, its own header, what is no serializer; in a transaction, it then aborts."""
    async with memory.open() as client:
        await client.create_topic("orders")
        orders: Any = await client.producer("orders", serializer=V2)
        with pytest.raises(InvalidInput, match="does not encode a dict"):
            await orders.send({"customer": "ada"})
        with pytest.raises(InvalidInput, match="is set by the serializer"):
            await orders.send(Order("ada", 1), headers={SCHEMA_HEADER: b"order:1"})
        with pytest.raises(InvalidInput, match="larger than client"):
            await orders.send_many([Order("x" * 6_000_000, 1)])
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(InvalidInput):
            await orders.send(b"bytes", txn=txn)
        with pytest.raises(TransactionHasFailedOperations):
            await txn.commit()
        for opening in (client.producer, client.reader):
            with pytest.raises(InvalidInput, match="a serializer is an object such as MsgspecJson"):
                await opening("orders", serializer=Order)  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="a serializer is an object such as MsgspecJson"):
            await client.consumer("orders", "billing", serializer=PlainJson)  # type: ignore[call-overload]
        assert await memory.read(client, "orders") == []
