"""Operators see the actual state of topics, subscriptions, transactions and leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from txnframework import Client, DeadLetter, InvalidInput, State, TxnID
from txnframework.errors import SubscriptionNotFound, TopicNotFound, TransactionNotFound

if TYPE_CHECKING:
    from conftest import Stores

QUIET: dict[str, object] = {"sweep": False}


async def prepared(client: Client) -> None:
    """Two readable messages, a subscription of which one is acknowledged."""
    await client.create_topic("orders")
    await client.subscribe("orders", "billing", start="earliest")
    async with await client.producer("orders") as orders:
        await orders.send_many([b"1"])
        await orders.send_many([b"2"])


@pytest.mark.families
async def test_a_topic_with_an_open_transaction(stores: Stores) -> None:
    """The status shows stored and readable messages, waiting ones, the holder of the subscription, and its lag."""
    async with stores.open(transactions=QUIET) as client, stores.open(transactions=QUIET) as looking:
        await prepared(client)
        consumer = await client.consumer("orders", "billing", name="worker")
        await consumer.ack(await consumer.receive())
        async with client.transaction() as txn:
            await (await client.producer("orders")).send(b"undecided", txn=txn)
            await consumer.ack(await consumer.receive(), txn=txn)
            found = await looking.describe_topic("orders")
            (segment,) = found.segments
            assert (segment.name, segment.sealed) == (str(found.layout.name_of(segment.segment.id)), False)
            assert segment.messages >= 3
            assert segment.undecided >= 1
            assert segment.readable < segment.last
            (billing,) = found.subscriptions
            assert (billing.subscription, billing.lag.messages) == ("billing", 1)
            (holder,) = billing.holders.values()
            assert holder.startswith("worker on ")
            assert billing.holders == await looking.dispatchers("orders", "billing")
            (position,) = await looking.describe_subscription("orders", "billing")
            assert position.open_transactions == (txn.id,)
            assert position.segment == segment.name
            assert (await looking.describe_transaction(txn.id)).state is State.OPEN
            (counted,) = [one for one in await looking.count_transactions() if one.open_count]
            assert counted.family == txn.id.family
        assert (await looking.describe_topic("orders")).segments[0].undecided == 0
        assert (await looking.describe_transaction(str(txn.id))).state is State.COMMITTED
        await consumer.close()
        assert (await looking.describe_topic("orders")).subscriptions[0].holders == {}


async def test_segments_after_a_split(stores: Stores) -> None:
    """The parent is sealed and names its children, which cover its hash range."""
    async with stores.open() as client:
        await prepared(client)
        children = await client.split("orders", 0)
        parent, *others = (await client.describe_topic("orders")).segments
        assert (parent.sealed, parent.segment.children, parent.messages) == (True, children, 2)
        assert [(one.sealed, one.messages, one.segment.parents) for one in others] == [(False, 0, (0,))] * 2
        assert len(await client.describe_subscription("orders", "billing")) == 3


async def test_redeliveries(stores: Stores) -> None:
    """Redeliveries are counted if a dead-letter rule stores them; acknowledged messages are excluded."""
    async with stores.open() as client:
        await prepared(client)
        rule = DeadLetter(redeliveries_max=5)
        async with await client.consumer("orders", "billing", dead_letter=rule) as consumer:
            for _ in range(3):
                message = await consumer.receive()
                await consumer.nack(message)
                while (again := await consumer.receive()).id != message.id:
                    pass
                await consumer.nack(again)
        (billing,) = (await client.describe_topic("orders")).subscriptions
        assert billing.redelivered == 1 or billing.redelivered == 2
        assert billing.redeliveries_max >= 3
        async with await client.consumer("orders", "billing") as consumer:
            await consumer.ack(await consumer.receive(), await consumer.receive())
        (billing,) = (await client.describe_topic("orders")).subscriptions
        assert (billing.redelivered, billing.redeliveries_max) == (0, 0)


async def test_topics_are_listed_in_pages(stores: Stores) -> None:
    """Each topic is listed once and in order for any page size, also if a topic is deleted meanwhile."""
    names = [
        "persistent://a/b/x",
        "persistent://a/bc/x",
        "topic://a/b/x",
        "topic://a/b/x!",
        "topic://a/b/x-y",
        "topic://a/b/xy",
        "topic://a/c/x",
    ]

    async with stores.open() as client:
        for name in names:
            await client.create_topic(name)
        whole = [str(one.topic) for one in await client.list_topics()]
        assert sorted(whole) == sorted(names)
        assert whole == [str(one) for one in await client.topics.list()]
        for size in (1, 2, 3):
            seen: list[str] = []
            while page := await client.list_topics(after=seen[-1] if seen else None, topics_max=size):
                seen += [str(one.topic) for one in page]
            assert seen == whole
        of_one = [str(one.topic) for one in await client.list_topics("a/b")]
        assert of_one == [name for name in whole if "//a/b/" in name]
        scalable = await client.list_topics(domain="topic", after="persistent://z/z/z")
        assert [str(one.topic) for one in scalable] == [name for name in whole if name.startswith("topic:")]
        second = whole[1]
        await client.delete_topic(second)
        assert str((await client.list_topics(after=second, topics_max=1))[0].topic) == whole[2]
        for asked in ({"domain": "queue"}, {"namespace": "a"}, {"topics_max": 0}):
            with pytest.raises(InvalidInput):
                await client.list_topics(**asked)  # type: ignore[arg-type]


async def test_leases_are_listed_in_pages(stores: Stores) -> None:
    """Those of sessions and dispatches among them, each with its holder."""
    async with stores.open(transactions=QUIET) as client:
        await client.create_topic("orders", segments=3)
        assert await client.leases("dispatch ") == ()
        consumer = await client.consumer("orders", "billing", name="worker")
        async with client.transaction():
            whole = await client.leases()
            dispatching = [one for one in whole if one.name.startswith("dispatch billing of segment://")]
            process = client.host.environment.process_name()
            holder = f"on {process} in {client.host.metadata.session}"
            assert len([one for one in dispatching if one.holder == f"worker {holder} as exclusive"]) >= 3
            (session,) = await client.leases("session ")
            assert session.name.startswith(f"session {process}/")
            assert session.holder == holder
            assert [one.holder for one in await client.leases("sweep ")] == []
            seen = list(await client.leases(leases_max=1))
            while page := await client.leases(after=seen[-1].name, leases_max=1):
                seen += page
            assert seen == list(whole)
        await consumer.close()


async def test_what_does_not_exist(stores: Stores) -> None:
    """The error names what does not exist."""
    async with stores.open() as client:
        with pytest.raises(TopicNotFound):
            await client.describe_topic("orders")
        await client.create_topic("orders")
        with pytest.raises(SubscriptionNotFound):
            await client.describe_subscription("orders", "nobody")
        with pytest.raises(TransactionNotFound):
            await client.describe_transaction(TxnID(0, 1))


def test_the_same_without_await(stores: Stores) -> None:
    """Each call is made once through the blocking client."""
    with stores.open_blocking() as client:
        client.create_topic("orders")
        client.subscribe("orders", "billing")
        (layout,) = client.list_topics()
        assert client.describe_topic("orders").layout == layout
        (position,) = client.describe_subscription("orders", "billing")
        assert position.open_transactions == ()
        with client.transaction() as txn:
            assert client.describe_transaction(txn.id).state is State.OPEN
            assert sum(one.open_count for one in client.count_transactions()) == 1
            assert client.leases("session ")
