"""The longest allowed names, in every store, and names that only earlier releases allowed."""

from __future__ import annotations

from typing import Any

import pytest

from txnframework import DeadLetter, InvalidInput
from txnframework.broker.topics import subscriptions, topics
from txnframework.errors import InvalidName, ReceiveTimeout, TopicExists, TopicNotFound
from txnframework.model.names import TopicName
from txnframework.testing._suites._base import longest_name, longest_segment

TOPIC = "topic://" + longest_segment(1).removeprefix("segment://").rpartition("/")[0]
SUBSCRIPTION, PRODUCER, PRINCIPAL = (longest_name(number) for number in (2, 3, 4))


async def test_everything_with_the_longest_names(stores: Any) -> None:
    """Sending, receiving, acknowledging in a transaction, listing and deleting work as with short ones."""
    async with stores.open() as client:
        await client.create_topic(TOPIC)
        await client.create_topic("out")
        async with await client.producer(TOPIC, name=PRODUCER) as producer:
            sent = await producer.send(b"a", sequence_id=1)
            assert await producer.send(b"a", sequence_id=1) == sent
        async with (
            await client.consumer(TOPIC, SUBSCRIPTION, start="earliest", name=longest_name(5)) as consumer,
            await client.producer(TOPIC, name=PRODUCER) as producer,
        ):
            message = await consumer.receive(timeout_ms=60_000)
            async with client.transaction(principal=PRINCIPAL) as txn:
                await producer.send(b"b", txn=txn, sequence_id=2)
                await consumer.ack(message, txn=txn)
            assert (await consumer.receive(timeout_ms=60_000)).value == b"b"
    async with stores.open() as client:
        assert TOPIC in map(str, await client.topics.list())
        assert (await client.layout(TOPIC)).subscriptions == (SUBSCRIPTION,)
        assert (await client.lag(TOPIC, SUBSCRIPTION)).messages == 1
        assert await stores.read(client, TOPIC) == [b"a", b"b"]
        await client.seek(TOPIC, SUBSCRIPTION, "earliest")
        assert (await client.lag(TOPIC, SUBSCRIPTION)).messages == 2
        await client.unsubscribe(TOPIC, SUBSCRIPTION)
        await client.delete_topic(TOPIC)
        assert TOPIC not in map(str, await client.topics.list())


async def test_a_topic_with_a_space_is_used_but_not_created(memory: Any) -> None:
    """An earlier release created the topic: it is read and consumed, and its dead-letter topic also has the
    space in its name.
    """
    old, letters = TopicName.parse("three apples"), "three apples-billing-DLQ"

    async with memory.open(subscriptions={"redelivery_delay_ms": 0}) as client:
        await client.host.topics.create(old)
        async with (
            client.producer(old) as producer,
            client.consumer(old, "billing", start="earliest", dead_letter=DeadLetter(0)) as consumer,
        ):
            await producer.send(b"a")
            await consumer.nack(await consumer.receive(timeout_ms=60_000))
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=60_000)
        assert await memory.read(client, letters) == [b"a"]
        await client.create_topic(old, exist_ok=True)
        with pytest.raises(TopicExists):
            await client.create_topic(old)
        for name, reason in (
            ("two apples", r"name contains a space; write '-' or '_' instead"),
            ("two\u00a0apples", "name contains a space"),
            ("my tenant/sales/orders", "tenant contains a space"),
            ("or\u200bders", r"name contains the invisible character U\+200B"),
        ):
            with pytest.raises(InvalidName, match=reason):
                await client.create_topic(name)
            with pytest.raises(TopicNotFound):
                await client.layout(name)


async def test_names_of_earlier_releases(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects with names that are too long now are listed, read, consumed and deleted, but not created again."""
    topic, subscription = f"topic://public/default/{'x' * 300}", f"{'y' * 300} "

    async with stores.open() as client:
        with monkeypatch.context() as earlier:
            earlier.setattr(topics, "check_new_topic", lambda topic: None)
            earlier.setattr(subscriptions, "check_new_name", lambda name, what: name)
            await client.create_topic(topic)
            await client.subscribe(topic, subscription)
        assert topic in map(str, await client.topics.list())
        async with await client.producer(topic) as producer:
            await producer.send(b"a")
        async with await client.consumer(topic, subscription) as consumer:
            await consumer.ack(await consumer.receive(timeout_ms=60_000))
        assert await stores.read(client, topic) == [b"a"]
        with pytest.raises(InvalidInput, match="begins or ends with a space"):
            await client.subscribe(topic, f"{'z' * 300} ")
        await client.unsubscribe(topic, subscription)
        await client.delete_topic(topic)
        with pytest.raises(InvalidInput, match="and at most 255 are allowed"):
            await client.create_topic(topic)
