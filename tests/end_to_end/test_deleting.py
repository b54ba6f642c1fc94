"""Behaviour 15: what deleting a topic removes, and what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from dying import Dies, Dying

from txnframework import Client, Consumer, Message, Producer, State
from txnframework.errors import (
    Closed,
    LedgerNotFound,
    OutcomeUnknown,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TransactionHasFailedOperations,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model import Ack, KeyRange, Position, TopicName
from txnframework.model.layout import Layout
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

NAME = TopicName.parse("orders")
RETURNING = "persistent://public/default/orders"
"""A topic whose segment has the same name in each of its lives."""
METADATA = {"coordinator": "metadata", "buffer": "metadata", "pending_ack": "metadata"}


async def paths_left(client: Client, *roots: str) -> list[str]:
    """Return the paths of every record below these roots."""
    found: list[str] = []
    for root in roots:
        page = await client.host.metadata.scan(KeyRange(f"{root}/", f"{root}0"), 1_000)
        found.extend(record.key.path for record in page.records)
    return found


@contextmanager
def refusing(store: object, method: str) -> Iterator[None]:
    """Make a store refuse calls of a method."""

    async def refuse(*_: object) -> None:
        raise Unavailable("the store is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, method, refuse)
        yield


async def aborted(client: Client, topic: str, value: bytes) -> None:
    """Send in a transaction that is aborted, and settle it."""
    txn = client.transaction()
    await txn.begin()
    producer = await client.producer(topic)
    await producer.send(value, txn=txn)
    await txn.abort()
    await (await client.host.coordinator()).settle(txn.id)


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_nothing_is_left_but_a_tombstone(stores: Stores) -> None:
    """Ledgers, cursors and abort records are removed; other topics are unchanged; the name can be reused at once."""
    async with stores.open() as client:
        for topic in ("orders", "other"):
            await client.create_topic(topic, segments=2)
            await aborted(client, topic, b"aborted")
            await (await client.producer(topic)).send(b"old")
            consumer = await client.consumer(topic, "billing", start="earliest")
            await consumer.ack(await consumer.receive())
            await consumer.close()
        await client.split("orders", 0)
        with pytest.raises(TopicInUse, match="billing"):
            await client.delete_topic("orders")
        assert await stores.read(client, "orders") == [b"old"]
        await client.topics.unsubscribe(NAME, "billing")
        await client.delete_topic("orders")
        for use in (client.producer, client.layout, client.reader, client.delete_topic):
            with pytest.raises(TopicNotFound, match="was deleted"):
                await use("orders")
        assert [topic.name for topic in await client.topics.list()] == ["other"]
        assert await client.host.ledgers.list_names("segment://public/default/orders/", "", 10) == ()
        left = await paths_left(client, "/txn-aborted", "/cursor")
        assert left
        assert all("other" in path for path in left)
        await client.create_topic("orders")
        assert list((await client.layout("orders")).segments) == [4]
        await (await client.producer("orders")).send(b"new")
        consumer = await client.consumer("orders", "billing", start="earliest")
        assert await stores.receive(consumer, 1) == [b"new"]
        await consumer.close()
    async with stores.open() as client:
        assert await stores.read(client, "orders") == [b"new"]
        assert await stores.read(client, "other") == [b"old"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.metadata_family("its topics have several segments")
async def test_open_transactions_of_the_former_life_do_nothing_to_the_next_one(stores: Stores, commit: bool) -> None:
    """Transactions that used the deleted topic end normally, and leave no operation unsettled."""
    async with stores.open() as client, stores.open() as elsewhere:
        for topic in ("orders", "other"):
            await client.create_topic(topic)
        await (await client.producer("orders")).send(b"acked")
        consumer = await elsewhere.consumer("orders", "billing", start="earliest")
        message = await consumer.receive()
        txn = elsewhere.transaction()
        await txn.begin()
        await (await elsewhere.producer("orders")).send(b"written", txn=txn)
        await (await elsewhere.producer("other")).send(b"kept", txn=txn)
        await consumer.ack(message, txn=txn)
        with pytest.raises(TopicInUse):
            await client.delete_topic("orders")
        await client.topics.unsubscribe(NAME, "billing")
        with pytest.raises(TopicInUse, match=str(txn.id)):
            await client.delete_topic("orders")
        await client.delete_topic("orders", force=True)
        await client.create_topic("orders")
        fresh = await client.consumer("orders", "billing", start="earliest")
        await (await client.producer("orders")).send(b"new")
        await (txn.commit() if commit else txn.abort())
        assert (await elsewhere.host.coordinator()).family == "metadata"
        assert (await (await elsewhere.host.coordinator()).settle(txn.id)).left == 0
        assert await paths_left(client, "/txn-op") == []
        assert [path for path in await paths_left(client, "/txn-aborted") if "orders" in path] == []
        assert await stores.receive(fresh, 1) == [b"new"]
        assert await stores.read(client, "orders") == [b"new"]
        assert await stores.read(client, "other") == ([b"kept"] if commit else [])
        await consumer.close()
        await fresh.close()


async def test_who_uses_a_deleted_topic_is_told(stores: Stores) -> None:
    """Producers, consumers and following readers get an error about the deletion, in every process."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        producers = [await one.producer("orders") for one in (client, elsewhere)]
        named = (("billing", client), ("shipping", elsewhere))
        consumers = [await one.consumer("orders", name) for name, one in named]
        readers = [await one.reader("orders", follow=True) for one in (client, elsewhere)]
        for producer in producers:
            await producer.send(b"1")
        for consumer in consumers:
            await stores.receive(consumer, 2)
        reading = [asyncio.ensure_future(_drained(reader)) for reader in readers]
        await client.delete_topic("orders", force=True)
        for again in (False, True):
            for producer in producers:
                with pytest.raises(TopicNotFound, match="orders was deleted"):
                    await producer.send(b"2")
            if not again:
                await client.create_topic("orders")
        for consumer in consumers:
            with pytest.raises(TopicNotFound, match="orders was deleted"):
                await consumer.receive(timeout_ms=60_000)
            await consumer.close()
        for one in reading:
            with pytest.raises(TopicNotFound, match="orders was deleted"):
                await one
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(TopicNotFound):
            await producers[1].send(b"3", txn=txn)
        with pytest.raises(TransactionHasFailedOperations):
            await txn.commit()
        assert await client.outcome(txn.id) is State.ABORTED
        assert await stores.read(client, "orders") == []


@pytest.mark.parametrize("by_whom", ["the same client", "another client"])
@pytest.mark.parametrize("returns", [False, True])
async def test_every_call_names_the_deletion(stores: Stores, by_whom: str, returns: bool) -> None:
    """Every call, first or repeated, raises an error that names the deletion."""
    async with stores.open() as client, stores.open() as elsewhere:
        deleter = client if by_whom == "the same client" else elsewhere
        txn = client.transaction()
        await client.create_topic("other")
        await txn.begin()
        calls: dict[str, Callable[[Consumer, Producer, Message], Awaitable[object]]] = {
            "ack": lambda consumer, _, message: consumer.ack(message),
            "ack in a transaction": lambda consumer, _, message: consumer.ack(message, txn=txn),
            "ack by id": lambda consumer, _, message: consumer.ack(message.id),
            "ack_cumulative": lambda consumer, _, message: consumer.ack_cumulative(message),
            "nack": lambda consumer, _, message: consumer.nack(message),
            "redeliver": lambda consumer, *_: consumer.redeliver_unacknowledged(),
            "seek": lambda consumer, *_: consumer.seek("earliest"),
            "receive": lambda consumer, *_: consumer.receive(timeout_ms=60_000),
            "send": lambda _, producer, __: producer.send(b"late"),
            "send_many": lambda _, producer, __: producer.send_many([b"late"]),
            "send in a transaction": lambda _, producer, __: producer.send(b"late", txn=txn),
        }
        for call in calls.values():
            await client.create_topic("orders", exist_ok=True)
            consumer = await client.consumer(["orders", "other"], "billing", start="earliest")
            producer = await client.producer("orders")
            await producer.send(b"1")
            message = await consumer.receive(timeout_ms=60_000)
            await deleter.delete_topic("orders", force=True)
            await run_ready()
            await client.ping(timeout_ms=60_000)  # what a watch has begun to read before is known after it
            if returns:
                await client.create_topic("orders")
            for _ in range(2):
                with pytest.raises(TopicNotFound, match="orders was deleted"):
                    await call(consumer, producer, message)
            await consumer.close()
            await producer.close()
        await txn.abort()


@pytest.mark.metadata_family("its topics have several segments")
async def test_a_producer_of_a_segment_is_told_of_the_deletion(stores: Stores) -> None:
    """A producer of one segment raises the same error and follows no children."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer((await client.layout("orders")).name_of(0))
        await producer.send(b"1")
        await client.delete_topic("orders")
        with pytest.raises(TopicNotFound, match="orders was deleted"):
            await producer.send(b"2")


async def _drained(reader: Any) -> None:
    async for _ in reader:
        pass


@pytest.mark.metadata_family("it tells topics by their domains")
async def test_a_namespace(stores: Stores) -> None:
    """A namespace is deleted with all of its topics, or not at all if one is in use."""
    async with stores.open() as client:
        for topic in ("orders", "persistent://public/default/orders", "topic://public/other/orders"):
            await client.create_topic(topic)
        consumer = await client.consumer("orders", "billing")
        await consumer.close()
        with pytest.raises(TopicInUse):
            await client.delete_namespace("public/default")
        assert len(await client.topics.list()) == 3
        await client.delete_namespace("public/default", force=True)
        assert [str(topic) for topic in await client.topics.list()] == ["topic://public/other/orders"]
        await client.delete_namespace("public/default")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("finisher", ["maintain", "create", "delete"])
async def test_a_crash_at_any_step_leaves_a_deletion_that_any_process_finishes(
    memory: Stores, finisher: str, applied: bool
) -> None:
    """Before the decision the topic is unchanged; afterwards any process finishes the deletion, and nothing remains."""

    async def one(steps: int) -> bool:
        topic = f"orders-{steps}"
        async with memory.open() as client, memory.open() as other:
            await client.create_topic(topic, segments=2)
            await aborted(client, topic, b"aborted")
            consumer = await client.consumer(topic, "billing", start="earliest")
            await consumer.close()
            deleting: Any = client.topics.deletion
            budget = [steps]
            coordinator: Any = await client.host.coordinator()
            store = Dying(client.host.metadata, budget, applied)
            for part in (deleting, deleting._layouts, deleting._subscriptions, coordinator._sweeps):
                part._store = store
            deleting._ledgers = Dying(client.host.ledgers, budget, applied)
            died = False
            try:
                await client.delete_topic(topic, force=True)
            except Dies:
                died = True
            if died and steps == 0 and not applied:
                assert topic in [found.name for found in await other.topics.list()]
                await other.delete_topic(topic, force=True)
            if finisher == "create":
                await other.create_topic(topic)
                assert list((await other.layout(topic)).segments) == [2]
                await other.delete_topic(topic)
            elif finisher == "maintain":
                client.host.maintenance._lease = "another"
                await other.host.maintenance.round()
            else:
                try:
                    await other.delete_topic(topic)
                except TopicNotFound:
                    assert topic not in [found.name for found in await other.topics.list()]
            assert await other.host.ledgers.list_names(f"segment://public/default/{topic}/", "", 10) == ()
            left = await paths_left(other, "/txn-aborted", "/cursor", "/txn-trimmed")
            assert [path for path in left if topic in path] == []
            return died

    steps = 0
    while await one(steps):
        steps += 1
    assert steps > 11


async def test_replies_are_lost(memory: Stores) -> None:
    """A repeated deletion finishes, and recognises its own earlier effect."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client:

        async def pass_time() -> None:
            while True:
                await clock.advance(50)

        passing = asyncio.ensure_future(pass_time())
        for steps in range(0, 60, 3):
            await client.create_topic("orders", segments=2)
            await (await client.producer("orders")).send(b"1")
            deleting = asyncio.ensure_future(client.delete_topic("orders"))
            for _ in range(steps):
                await asyncio.sleep(0)
            backends: tuple[Any, ...] = (client.host.metadata, client.host.ledgers)
            for backend in backends:
                backend.cut()
            await asyncio.sleep(0)
            for backend in backends:
                backend.restore()
            try:
                await deleting
            except (Unavailable, OutcomeUnknown):
                await client.delete_topic("orders")
            with pytest.raises(TopicNotFound):
                await client.layout("orders")
        passing.cancel()
        assert await client.host.ledgers.list_names("segment://", "", 10) == ()


async def test_a_deletion_that_stops_halfway_has_an_unknown_outcome(memory: Stores) -> None:
    """The outcome is unknown: the topic is gone, and any process removes the rest."""
    async with memory.open(client={"retries_max": 0}) as client:
        metadata, ledgers = client.host.metadata, client.host.ledgers
        for name in ("first", "second"):
            await client.create_topic(name)
        with refusing(metadata, "put"), pytest.raises(Unavailable):
            await client.delete_topic("first")
        assert (await client.layout("first")).active()
        with refusing(ledgers, "delete"), pytest.raises(OutcomeUnknown, match="first is deleted, or may be"):
            await client.delete_topic("first")
        with pytest.raises(TopicNotFound):
            await client.layout("first")
        assert await ledgers.list_names("segment://public/default/first/", "", 1)
        with refusing(ledgers, "delete"), pytest.raises(OutcomeUnknown, match="first is deleted, or may be"):
            await client.delete_topic("first")
        await client.delete_topic("first")
        assert not await ledgers.list_names("segment://public/default/first/", "", 1)

        await client.create_topic("third")
        deleted: list[str] = []
        delete = client.topics.delete

        async def delete_one(topic: TopicName, **options: Any) -> None:
            if deleted:
                raise Unavailable("the store is away")
            await delete(topic, **options)
            deleted.append(topic.topic)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.topics, "delete", delete_one)
            with pytest.raises(OutcomeUnknown, match="1 of 2 topics are deleted"):
                await client.delete_namespace("public/default")
        assert len(await client.topics.list()) == 1


async def test_nothing_stays_open_of_a_deleted_topic(stores: Stores) -> None:
    """The handles that a process keeps open do not grow with created and deleted topics."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await client.subscribe("orders", "billing")
        layout = await client.layout("orders")
        segment = str(layout.name_of(0))
        opened = await client.host.segment(segment)
        subscribed = await client.host.subscription(str(layout.topic), "billing", segment)
        await client.delete_topic("orders", force=True)
        with pytest.raises(Closed):
            await opened.buffer.recover()
        with pytest.raises(Closed):
            await subscribed.pending_acks.recover()
        with pytest.raises(LedgerNotFound):
            await client.host.subscription(str(layout.topic), "billing", segment)


async def test_a_segment_that_is_only_missing_is_not_taken_for_deleted(memory: Stores) -> None:
    """If a ledger is missing but its topic exists, ended transactions wait and no record is removed."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("orders")
        txn = client.transaction()
        await txn.begin()
        sent = await (await client.producer("orders")).send(b"1", txn=txn)
        await client.host.ledgers.delete(sent.segment, None)
        await txn.abort()
        assert (await (await other.host.coordinator()).settle(txn.id)).left == 1
        with pytest.raises((LedgerNotFound, TxnFrameworkError)):
            await memory.read(other, "orders")


async def test_a_split_under_way_leaves_no_ledger_of_a_deleted_topic(memory: Stores) -> None:
    """A process whose split was overtaken by the deletion removes the children that it created."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("orders")
        topics: Any = client.topics
        make = topics._make_children

        async def late(*args: Any) -> None:
            await other.delete_topic("orders")
            await make(*args)

        topics._make_children = late
        with pytest.raises(TopicNotFound):
            await client.split("orders", 0)
        assert await client.host.ledgers.list_names("segment://", "", 10) == ()


@pytest.mark.parametrize("quicker", ["create", "create and split", "create and delete"])
async def test_who_is_too_late_to_make_a_topic_leaves_nothing_and_takes_nothing(memory: Stores, quicker: str) -> None:
    """A late creator removes its own ledgers, and none of the topic that won, whatever happens to that topic."""
    async with memory.open() as client, memory.open() as elsewhere:
        layouts: Any = client.topics._layouts
        put, go, reached = layouts.put, asyncio.Event(), asyncio.Event()

        async def late(*arguments: Any) -> None:
            reached.set()
            await go.wait()
            await put(*arguments)

        layouts.put = late
        making = asyncio.ensure_future(client.create_topic("orders", segments=4))
        await reached.wait()
        layouts.put = put
        await elsewhere.create_topic("orders", segments=2)
        if quicker == "create and split":
            # The lower child has the very name of one of those four.
            assert await elsewhere.split("orders", 1) == (2, 3)
            producer = await elsewhere.producer("orders")
            await producer.send_many([b"%d" % number for number in range(10)])
        elif quicker == "create and delete":
            await elsewhere.delete_topic("orders")
        go.set()
        with pytest.raises(TopicExists):
            await making
        ledgers = await client.host.ledgers.list_names("segment://", "", 20)
        if quicker == "create and delete":
            assert ledgers == ()
            await client.create_topic("orders")
            return
        layout = await client.layout("orders")
        assert set(ledgers) == {str(layout.name_of(number)) for number in layout.segments}
        if quicker == "create and split":
            assert len(await memory.read(client, "orders")) == 10
        else:
            assert min(await elsewhere.split("orders", 1)) == 4


async def test_a_remover_that_was_paused_leaves_the_next_topic_of_the_name_alone(memory: Stores) -> None:
    """A paused deletion that resumes removes no ledger beyond the last ledger of the former topic."""
    memory.domains = {"persistent": METADATA}

    async with memory.open() as paused, memory.open() as client:
        await client.create_topic(RETURNING)
        await (await client.producer(RETURNING)).send(b"former")
        ledgers: Any = paused.host.ledgers
        delete, go, reached = ledgers.delete, asyncio.Event(), asyncio.Event()

        async def late(*arguments: Any) -> None:
            reached.set()
            await go.wait()
            await delete(*arguments)

        ledgers.delete = late
        deleting = asyncio.ensure_future(paused.delete_topic(RETURNING))
        await reached.wait()
        await client.create_topic(RETURNING)
        await (await client.producer(RETURNING)).send(b"next")
        go.set()
        await deleting
        for reading in (client, paused):
            assert await memory.read(reading, RETURNING) == [b"next"]


async def test_cursors_of_a_name_that_returns_do_not_start_over(memory: Stores) -> None:
    """An acknowledgment of the former topic has no effect on a subscription of the next topic of the name."""
    memory.domains = {"persistent": METADATA}

    async with memory.open() as client:
        incarnations, acks = [], (Ack(Position(1, 0), cumulative=True),)
        for _ in range(3):
            await client.create_topic(RETURNING)
            await client.subscribe(RETURNING, "billing", start="earliest")
            cursor = (await client.host.subscription(RETURNING, "billing", RETURNING)).cursor
            assert not any([await cursor.apply(former, acks, None) for former in incarnations])
            incarnations.append((await cursor.load()).incarnation)
            await client.delete_topic(RETURNING, force=True)
        assert sorted(set(incarnations)) == incarnations


async def test_a_consumer_that_stands_by_is_not_handed_over_to_the_next_topic_of_the_name(memory: Stores) -> None:
    """A waiting consumer gets an error about the deletion, although a new topic has the name."""
    async with memory.open() as client, memory.open() as standing_by:
        await client.create_topic("orders")
        first = await client.consumer("orders", "billing", type="failover", start="earliest")
        second = await standing_by.consumer("orders", "billing", type="failover")
        topics: Any = standing_by.topics
        layout, go = topics.layout, asyncio.Event()

        async def late(topic: TopicName) -> Layout:
            await go.wait()
            found: Layout = await layout(topic)
            return found

        topics.layout = late
        await client.delete_topic("orders", force=True)
        await client.create_topic("orders")
        await client.subscribe("orders", "billing", start="earliest")
        await (await client.producer("orders")).send(b"next")
        go.set()
        with pytest.raises(TopicNotFound, match="deleted"):
            await second.receive(timeout_ms=60_000)
        await first.close()
