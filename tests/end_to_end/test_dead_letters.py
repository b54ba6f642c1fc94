"""Behaviour 26: messages that were delivered too often go to the dead-letter topic, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from txnframework import AckState, Client, Consumer, DeadLetter, Message, Producer
from txnframework.broker import Host
from txnframework.client._dead_letters import DeadLetters
from txnframework.client._sends.batches import size_of
from txnframework.client._transaction_admin import TransactionOperations
from txnframework.errors import InvalidInput, OutcomeUnknown
from txnframework.model.entries import EntryMessage
from txnframework.model.names import TopicName
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

LETTERS = "orders-billing-DLQ"
T = TypeVar("T")


async def prepared(client: Client, *values: bytes) -> Producer:
    await client.create_topic("orders")
    producer = await client.producer("orders")
    for value in values:
        await producer.send(value, key=b"key of " + value, headers={"colour": b"red"})
    return producer


async def abort_ack(client: Client, consumer: Consumer, message: Message) -> None:
    async with client.transaction() as txn:
        await consumer.ack(message, txn=txn)
        await txn.abort()


async def letters(client: Client, topic: str = LETTERS) -> list[Message]:
    async with await client.reader(topic) as reader:
        return [message async for message in reader]


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_aborted_acks_past_the_maximum(stores: Stores, kind: str) -> None:
    """After the maximum of redeliveries, a message is moved with its key, headers and origin."""
    async with stores.open() as client:
        producer = await prepared(client, b"bad", b"good")
        rule = DeadLetter(redeliveries_max=2)
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest", dead_letter=rule)
        deliveries = []
        last: Message | None = None
        while len(deliveries) < 4:
            message = await consumer.receive(timeout_ms=60_000)
            deliveries.append((message.value, message.redelivery_count))
            if message.value == b"bad":
                last = message
                await abort_ack(client, consumer, message)
            else:
                await consumer.ack(message)
        assert sorted(deliveries) == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]
        assert last is not None
        await _until_there(client, consumer)
        (letter,) = await letters(client)
        assert (letter.value, letter.key) == (b"bad", b"key of bad")
        assert dict(letter.headers) == {
            "colour": b"red",
            "dead-letter-topic": last.topic.encode(),
            "dead-letter-segment": last.id.segment.encode(),
            "dead-letter-position": str(last.id.position).encode(),
            "dead-letter-subscription": b"billing",
            "dead-letter-deliveries": b"3",
        }
        await producer.send(b"after")
        assert await stores.receive(consumer, 1) == [b"after"]
        await consumer.close()
    async with stores.open() as client:
        consumer = await client.consumer("orders", "billing", type=kind)
        assert await stores.receive(consumer, 1) == [b"after"]
        await consumer.close()
        assert [message.value for message in await letters(client)] == [b"bad"]


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_consumer_that_fails_again_and_again(stores: Stores, kind: str) -> None:
    """Closing without an ack counts as a delivery of messages that were seen; the next consumer continues the count."""
    async with stores.open() as client:
        await prepared(client, b"bad", b"unseen")
        rule = DeadLetter(redeliveries_max=2)
        counts = []
        for _ in range(3):
            async with await client.consumer("orders", "billing", type=kind, start="earliest") as consumer:
                message = await consumer.receive(timeout_ms=60_000)
                counts.append((message.value, message.redelivery_count))
        assert counts == [(b"bad", 0), (b"bad", 1), (b"bad", 2)]
        consumer = await client.consumer("orders", "billing", type=kind, dead_letter=rule)
        unseen = await consumer.receive(timeout_ms=60_000)
        assert (unseen.value, unseen.redelivery_count) == (b"unseen", 0)
        await _until_there(client, consumer)
        await consumer.seek("earliest")
        again = await consumer.receive(timeout_ms=60_000)
        assert (again.value, again.redelivery_count) == (b"bad", 0)
        await consumer.close()
        assert [letter.value for letter in await letters(client)] == [b"bad"]


@pytest.mark.metadata_family("its topics have several segments")
async def test_nacked_messages_and_a_topic_of_a_name(stores: Stores) -> None:
    """Negative acks count like aborts; the dead-letter topic may already exist and have other users."""
    async with stores.open() as client:
        await prepared(client, b"1", b"2", b"3")
        await client.create_topic("graves", segments=2)
        rule = DeadLetter(redeliveries_max=0, topic="graves")
        consumer = await client.consumer("orders", "billing", start="earliest", dead_letter=rule)
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        graves = await client.consumer("graves", "relatives", start="earliest")
        await consumer.nack(received[0], received[2])
        assert sorted(await _receive_while(consumer, stores.receive(graves, 2))) == [b"1", b"3"]
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 1) == [b"2"]
        await consumer.close()
        await graves.close()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("persistent://public/default/orders", None),
        ("persistent://public/default/orders", "graves"),
        ("orders", "persistent://public/default/graves"),
    ],
)
async def test_topics_without_transactions(stores: Stores, source: str, target: str | None) -> None:
    """If either topic has no transactions, the message is moved first and acknowledged afterwards."""
    async with stores.open() as client:
        await client.create_topic(source)
        await (await client.producer(source)).send(b"bad", key=b"key", headers={"colour": b"red"})
        rule = DeadLetter(redeliveries_max=0, topic=target)
        consumer = await client.consumer(source, "billing", start="earliest", dead_letter=rule)
        message = await consumer.receive(timeout_ms=60_000)
        await consumer.nack(message)
        where = target or "persistent://public/default/orders-billing-DLQ"
        await _until_there(client, consumer, where)
        await consumer.close()
        (letter,) = await letters(client, where)
        assert (letter.value, letter.key, letter.headers["colour"]) == (b"bad", b"key", b"red")
        assert letter.headers["dead-letter-topic"] == message.topic.encode()
        assert (await client.ack_status("billing", message.id)).state is AckState.DELETED


@pytest.mark.parametrize("step", ["transact", "after transact", "send", "ack", "after ack"])
async def test_a_crash_while_a_letter_is_moved(memory: Stores, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """After a crash at any step, another process delivers the message until it is moved, and it is stored once."""
    rule = DeadLetter(redeliveries_max=0)
    # What the crashed process left open in the dead-letter topic is aborted by the next sweep.
    async with memory.open() as doomed, memory.open(transactions={"sweep_interval_ms": 20}) as client:
        await prepared(client, b"bad")
        first = await doomed.consumer("orders", "billing", start="earliest", dead_letter=rule)
        second = await client.consumer("orders", "billing", stand_by=True, dead_letter=rule)
        if "transact" not in step:
            monkeypatch.setattr(Host, "shared_domain", lambda *_: None)
        crashed = asyncio.Event()

        async def crash(*_: Any, **__: Any) -> None:
            doomed.host.metadata.crash()  # type: ignore[attr-defined]
            crashed.set()
            await asyncio.Event().wait()

        def is_doomed(operations: TransactionOperations) -> bool:
            return operations.host is doomed.host

        transact = TransactionOperations.transact
        if step == "transact":
            monkeypatch.setattr(TransactionOperations, "transact", _before(transact, crash, is_doomed))
        elif step == "after transact":
            monkeypatch.setattr(TransactionOperations, "transact", _then(transact, crash, is_doomed))
        elif step == "send":
            producer = Producer.send
            monkeypatch.setattr(Producer, "send", _then(producer, crash, lambda one: one._host is doomed.host))
        elif step == "ack":
            monkeypatch.setattr(first, "ack", crash)
        else:
            monkeypatch.setattr(first, "ack", _then(first.ack, crash))
        await first.nack(await first.receive())
        moving = asyncio.ensure_future(first.receive())
        await crashed.wait()
        moving.cancel()
        # Its deliveries are known to the process that takes over, so it is moved at once.
        await _until_there(client, second)
        assert [letter.value for letter in await letters(client)] == [b"bad"]


async def test_two_processes_that_move_one_letter(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process pauses while it moves a message, and another takes over: only one of them succeeds."""
    rule = DeadLetter(redeliveries_max=0)
    async with memory.open() as client, memory.open() as elsewhere:
        await prepared(client, b"bad")
        first = await client.consumer("orders", "billing", start="earliest", dead_letter=rule)
        second = await elsewhere.consumer("orders", "billing", stand_by=True, dead_letter=rule)
        paused, go_on = asyncio.Event(), asyncio.Event()
        transact = TransactionOperations.transact

        async def pause() -> None:
            paused.set()
            await go_on.wait()

        monkeypatch.setattr(
            TransactionOperations, "transact", _before(transact, pause, lambda one: one.host is client.host)
        )
        message = await first.receive()
        await first.nack(message)
        waiting = asyncio.ensure_future(first.receive())
        await paused.wait()
        (dispatch,) = client.host.dispatches._open.values()
        await dispatch._lease.release()
        await _receive_while(second, run_ready(1_000))
        subscribed = await elsewhere.host.subscription(message.topic, "billing", message.id.segment)
        assert (await subscribed.cursor.load()).mark_delete == message.id.position.entry
        go_on.set()
        await second.close()
        await first.close()
        await asyncio.gather(waiting, return_exceptions=True)
        assert [letter.value for letter in await letters(client)] == [b"bad"]


async def test_an_unknown_outcome_is_not_moved_twice(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit took effect but its reply was lost: the next attempt finds the message acknowledged."""
    async with memory.open(client={"retry_delay_ms": 1}) as client:
        await prepared(client, b"bad", b"good")
        rule = DeadLetter(redeliveries_max=0)
        consumer = await client.consumer("orders", "billing", start="earliest", dead_letter=rule)
        move, calls, twice = DeadLetters._move, [], asyncio.Event()

        async def lose_the_reply(letters: DeadLetters, message: Message) -> None:
            calls.append(message.value)
            if len(calls) == 2:
                twice.set()
            await move(letters, message)
            if len(calls) == 1:
                raise OutcomeUnknown("the reply was lost")

        monkeypatch.setattr(DeadLetters, "_move", lose_the_reply)
        await consumer.nack(await consumer.receive())
        good = await consumer.receive()
        await _until_there(client, consumer)
        await twice.wait()
        await consumer.ack(good)
        await consumer.close()
        assert [letter.value for letter in await letters(client)] == [b"bad"]


async def test_a_message_that_has_no_room_for_more_headers(memory: Stores) -> None:
    """The message is moved with as much of its origin as fits into its headers; the consumer continues."""
    bytes_max = 2_000
    async with memory.open(client={"message_bytes_max": bytes_max, "entry_bytes_max": bytes_max}) as client:
        producer = await prepared(client)
        empty = size_of(EntryMessage(None, b"", (), 0, 0))
        rule = DeadLetter(redeliveries_max=0)
        async with await client.consumer("orders", "billing", dead_letter=rule) as consumer:
            for room in (0, 30, 120):
                await producer.send(b"x" * (bytes_max - empty - room))
                await consumer.nack(await consumer.receive(timeout_ms=60_000))
            await _until_there(client, consumer, letters=3)
            await producer.send(b"good")
            assert await memory.receive(consumer, 1) == [b"good"]
    async with memory.open() as client:
        headers = [set(dict(letter.headers)) for letter in await letters(client)]
        assert headers[0] == set()
        assert headers[1] == {"dead-letter-position"}
        assert {"dead-letter-segment", "dead-letter-position"} <= headers[2] < {"dead-letter-topic"} | headers[2]


async def test_rules_that_cannot_be(memory: Stores) -> None:
    """Invalid rules are refused when the consumer is created, before any change."""
    with pytest.raises(InvalidInput, match="between 0 and"):
        DeadLetter(redeliveries_max=-1)
    async with memory.open() as client:
        await client.create_topic("orders")
        for rule, says in (
            (DeadLetter(redeliveries_max=1, topic="orders"), "come again"),
            (DeadLetter(redeliveries_max=1, topic="segment://public/default/x/0000-ffff-0"), "is a segment"),
        ):
            with pytest.raises(InvalidInput, match=says):
                await client.consumer("orders", "billing", dead_letter=rule)
        assert not (await client.topics.layout(TopicName.parse("orders"))).subscriptions


async def _receive_while(consumer: Consumer, work: Awaitable[T]) -> T:
    """Let a consumer fail repeatedly on its messages and move dead letters, until other work is done."""

    async def fail() -> None:
        while True:
            await consumer.nack(await consumer.receive())

    receiving = asyncio.ensure_future(fail())
    try:
        return await work
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


async def _until_there(client: Client, consumer: Consumer, topic: str = LETTERS, letters: int = 1) -> None:
    """Return when the dead-letter topic has this number of messages."""
    await client.create_topic(topic, exist_ok=True)

    async def first() -> list[bytes]:
        found: list[bytes] = []
        async with await client.reader(topic, follow=True) as reader:
            async for message in reader:
                found.append(message.value)
                if len(found) == letters:
                    break
        return found

    await _receive_while(consumer, first())


def _before(call: Any, first: Any, when: Any) -> Any:
    async def both(*arguments: Any, **named: Any) -> Any:
        if when(arguments[0]):
            await first()
        return await call(*arguments, **named)

    return both


def _then(call: Any, after: Any, when: Any = lambda _: True) -> Any:
    async def both(*arguments: Any, **named: Any) -> Any:
        result = await call(*arguments, **named)
        if when(arguments[0]):
            await after()
        return result

    return both
