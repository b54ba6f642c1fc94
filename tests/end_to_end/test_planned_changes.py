"""Splits and merges that were planned but not completed, because their process is slow or died."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import LedgerNotFound
from txnframework.model import TopicName
from txnframework.model.key_hashes import key_hash
from txnframework.model.layout import Layout
from txnframework.model.layout_changes import plan_merge, plan_split, planned_changes

if TYPE_CHECKING:
    from conftest import Stores

TOPIC = TopicName.parse("orders")
KEYS = tuple(
    next(key for key in (b"%d" % number for number in range(99)) if (key_hash(key) >= 0x8000) is upper)
    for upper in (False, True)
)
"""One of each half of the hash range."""


PLANS: dict[str, tuple[int, Callable[[Layout], Layout]]] = {
    "split": (1, lambda layout: plan_split(layout, 0)),
    "merge": (2, lambda layout: plan_merge(layout, 0, 1)),
}


@pytest.mark.parametrize(
    ("change", "crash_after"),
    [(change, after) for change in PLANS for after in ("plan", "children", "seal")] + [("merge", "first seal")],
)
async def test_whoever_meets_a_planned_change_finishes_it(stores: Stores, change: str, crash_after: str) -> None:
    """An unfinished split or merge blocks no client: producers, consumers and readers complete it."""
    segments, plan = PLANS[change]

    async with stores.open() as client:
        await client.create_topic("orders", segments=segments)
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        for key in KEYS:
            await producer.send(b"1", key=key)
    async with stores.open() as client:
        topics = client.topics
        layout, version = await topics._layouts.load(TOPIC)
        planned = plan(layout)
        assert await topics._layouts.put_if(planned, version)
        if crash_after != "plan":
            await topics._make_children(planned, planned.segments[0].children)
        for parent in {"seal": range(segments), "first seal": range(1)}.get(crash_after, ()):
            await (await client.host.segment(str(planned.name_of(parent)))).ledger.seal()
    async with stores.open() as client:
        producer = await client.producer("orders")
        async with client.transaction() as txn:
            for key in KEYS:
                await producer.send(b"2", key=key, txn=txn)
        assert planned_changes(await client.topics.layout(TOPIC)) == ()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 4) == [b"1", b"1", b"2", b"2"]
        assert await stores.read(client, "orders") == [b"1", b"1", b"2", b"2"]
        await consumer.close()


@pytest.mark.parametrize("user", ["consumer", "reader", "producer", "subscribe", "segment"])
async def test_children_that_are_only_planned(stores: Stores, user: str) -> None:
    """Their ledgers may not exist yet: whatever is open when a split is planned goes on, and later finds them."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        sent = await producer.send(b"1", key=b"a")
        consumer = await client.consumer("orders", "billing", start="earliest")
        reader = await client.reader("orders", follow=True)
        layout, version = await client.topics._layouts.load(TOPIC)
        planned = plan_split(layout, 0)
        assert await client.topics._layouts.put_if(planned, version)
        for child in planned.segments[0].children:
            with pytest.raises(LedgerNotFound):
                await client.host.segment(str(planned.name_of(child)))
        if user == "consumer":
            assert await stores.receive(consumer, 1) == [b"1"]
            await consumer.seek(0)
            assert await stores.receive(consumer, 1) == [b"1"]
            await consumer.seek(sent)
            assert await stores.receive(consumer, 1) == [b"1"]
        if user == "reader":
            assert (await anext(aiter(reader))).value == b"1"
        if user == "producer":
            await producer.send(b"2", key=b"a")
        if user == "subscribe":
            await client.topics.subscribe(TOPIC, "late", "latest")
            await client.topics.unsubscribe(TOPIC, "late")
        if user == "segment":
            child = str(planned.name_of(planned.segments[0].children[0]))
            await (await client.consumer(child, "alone")).close()
        await client.topics.finish_changes(TOPIC)
        async with client.transaction() as txn:
            await producer.send(b"3", key=b"a", txn=txn)
        while (await consumer.receive(timeout_ms=60_000)).value != b"3":
            pass
        await reader.close()
        await consumer.close()
