"""A topic migrates between the families while, before or after something else happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, take, values

from txnframework import Client
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import (
    BacklogQuotaExceeded,
    LedgerNotFound,
    MigrationRefused,
    ReceiveTimeout,
    TopicExists,
    TopicInUse,
    TransactionConflict,
    TransactionNotFound,
)
from txnframework.model import migration_changes as changes
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import LOG_FAMILY, Branch
from txnframework.model.layout_changes import deleted, with_subscription
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

OTHERS = "persistent://public/default/others"
SEAL = "txnframework_legacy.pending_acks.store:LogPendingAcks.seal"
SETTLE = "txnframework.broker.topics.migration_outcomes:OutcomeRecorder.settle"


def names(*texts: str) -> tuple[TopicName, ...]:
    return tuple(TopicName.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("method", "is_after"),
    [(SEAL, False), (SEAL, True), (SETTLE, False)],
    ids=["before the seal", "after the seal", "after the look"],
)
async def test_a_transaction_is_committed_meanwhile(
    stores: Stores, method: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost, and nothing acknowledged is delivered again."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await elsewhere.producer(OLD)
        consumer = await elsewhere.consumer(OLD, "billing", start="earliest")
        await sender.send_many([b"1", b"2"])
        first = await consumer.receive(timeout_ms=SOON_MS)
        txn = elsewhere.transaction(domain="persistent")
        await txn.begin()
        await consumer.ack(first, txn=txn)
        await sender.send(b"3", txn=txn)
        step, done = resolve_name(method), False

        async def beside(*arguments: Any) -> Any:
            nonlocal done
            if done:
                return await step(*arguments)
            done = True
            result = await step(*arguments) if is_after else None
            await txn.commit()
            return result if is_after else await step(*arguments)

        monkeypatch.setattr(method.replace(":", "."), beside)
        await migrate(client)
        assert done
        assert await values(client, NEW) == [b"1", b"2", b"3"]
        assert await take(elsewhere, consumer, NEW, 2) == [b"2", b"3"]
        with pytest.raises(ReceiveTimeout):
            await consumer.receive(timeout_ms=20)


async def test_two_topics_want_one_name(stores: Stores) -> None:
    """The first topic keeps the name, before and after its migration is decided; the other one is unchanged."""
    async with stores.open(**BOTH) as client:
        for topic in (OLD, OTHERS):
            await client.create_topic(topic)
            await (await client.producer(topic)).send(topic.encode())
        old, others, new = names(OLD, OTHERS, NEW)
        migrations = client.topics.migrations
        assert await migrations.plan(old, new)
        with pytest.raises(TopicExists):
            await migrations.plan(others, new)
        layouts = StoredLayouts(client.host.metadata)
        layout, version = await layouts.load(old)
        await layouts.put(changes.decided(layout, EARLIEST), version)
        with pytest.raises(TopicExists):
            await migrations.migrate(others, new)
        assert await values(client, OTHERS) == [OTHERS.encode()]
        await migrations.finish(old)
        assert await values(client, NEW) == [OLD.encode()]
        # The reservation of a withdrawn plan, left by a crash, does not block the name.
        elsewhere = replace(new, name="elsewhere")
        assert await migrations.plan(others, elsewhere)
        layout, version = await layouts.load(others)
        await layouts.put(changes.withdrawn(layout), version)
        await client.create_topic(str(elsewhere))
        assert await values(client, str(elsewhere)) == []


async def test_a_name_whose_topic_is_being_deleted(stores: Stores) -> None:
    """The rest of the deleted topic is removed first, so that the new topic does not refer to it."""
    async with stores.open(**BOTH) as client:
        for topic in (OLD, NEW):
            await client.create_topic(topic)
        await (await client.producer(NEW)).send(b"deleted")
        layouts, (new,) = StoredLayouts(client.host.metadata), names(NEW)
        layout, version = await layouts.load(new)
        await layouts.put(deleted(layout), version)
        await migrate(client)
        assert await values(client, NEW) == []
        with pytest.raises(LedgerNotFound):
            await client.host.ledgers.open(str(layout.name_of(0)))
        await client.delete_topic(NEW)
        await client.create_topic(NEW)
        assert await values(client, NEW) == []


async def test_a_topic_of_an_earlier_life_is_not_deleted(stores: Stores) -> None:
    """A client that knows the topic from before its migration follows it, instead of getting an error about a
    deletion.
    """
    async with stores.open(**BOTH) as client:
        known: list[tuple[str, int]] = []
        await client.create_topic(OLD)
        for _ in range(2):
            layout = await client.layout(OLD)
            known += [(str(layout.name_of(one.id)), layout.life) for one in layout.in_order()]
            await migrate(client)
        deletion = client.topics.deletion
        assert not [one for one in known if await deletion.is_deleted(*one)]
        await client.delete_topic(OLD)
        await client.create_topic(OLD)
        assert [one for one in known if await deletion.is_deleted(*one)] == known


async def test_a_cursor_that_no_process_has_made(stores: Stores) -> None:
    """A cursor that no process has created is created after the migration, where the subscription began."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sent = await (await client.producer(OLD)).send(b"1")
        layouts, (old,) = StoredLayouts(client.host.metadata), names(OLD)
        layout, version = await layouts.load(old)
        await layouts.put(with_subscription(layout, "billing", {}), version)
        await migrate(client)
        cursor = await StoredCursor(client.host.metadata, NEW, sent.segment, "billing").load()
        assert (cursor.mark_delete, cursor.admits(LOG_FAMILY)) == (EARLIEST, False)
        async with await client.consumer(NEW, "billing") as consumer:
            assert await take(client, consumer, NEW, 1) == [b"1"]


async def test_a_paused_migration_seals_no_later_acknowledgments(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused migration resumes after another process has finished: it seals no acks of the new topic."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        await client.subscribe(OLD, "billing", start="earliest")
        reached, goes_on = asyncio.Event(), asyncio.Event()
        step = SegmentCache.subscription

        async def paused(self: SegmentCache, *arguments: Any) -> Any:
            if self is client.host.segments and not reached.is_set():
                reached.set()
                await goes_on.wait()
            return await step(self, *arguments)

        monkeypatch.setattr(SegmentCache, "subscription", paused)
        first = asyncio.create_task(migrate(client))
        await reached.wait()
        await migrate(elsewhere)
        goes_on.set()
        await first
        async with await client.consumer(NEW, "billing") as consumer:
            assert await take(client, consumer, NEW, 1) == [b"1"]


async def test_a_subscription_that_is_opened_meanwhile(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening begins before the topic migrates and ends afterwards: the next caller gets that of the new topic."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        await client.subscribe(OLD, "billing", start="earliest")
        reached, goes_on = asyncio.Event(), asyncio.Event()
        step = SegmentOpener.subscription

        async def paused(self: SegmentOpener, *arguments: Any) -> Any:
            opened = await step(self, *arguments)
            if not reached.is_set():
                reached.set()
                await goes_on.wait()
            return opened

        monkeypatch.setattr(SegmentOpener, "subscription", paused)
        first = asyncio.create_task(client.host.subscription(OLD, "billing", OLD))
        await reached.wait()
        await migrate(elsewhere)
        layout = await client.layout(NEW)
        await client.host.segment(OLD, layout.life)
        goes_on.set()
        assert (await first).topic == OLD
        assert (await client.host.subscription(NEW, "billing", OLD, layout.life)).topic == NEW
        async with await client.consumer(NEW, "billing") as consumer:
            assert await take(client, consumer, NEW, 1) == [b"1"]


async def test_not_subscribed_during_the_migration(stores: Stores) -> None:
    """A process that does not know of the migration cannot acknowledge for the subscription that is made afterwards."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sent = await (await client.producer(OLD)).send(b"1")
        await client.subscribe(OLD, "billing", start="earliest")
        stale = (await client.host.subscription(OLD, "billing", sent.segment)).pending_acks
        await client.unsubscribe(OLD, "billing")
        await migrate(elsewhere)
        await elsewhere.subscribe(NEW, "billing", start="earliest")
        async with await elsewhere.consumer(NEW, "billing") as consumer:
            message = await consumer.receive(timeout_ms=SOON_MS)
            cursor = await StoredCursor(client.host.metadata, NEW, sent.segment, "billing").load()
            txn = client.transaction(domain="persistent")
            await txn.begin()
            request = AckRequest(Branch(txn.id), (Ack(sent.position.entry, 1),), incarnation=cursor.incarnation)
            with pytest.raises((TransactionConflict, TransactionNotFound)):
                await stale.add(request)
            await txn.abort()
            async with elsewhere.transaction(domain=await elsewhere.transaction_domain(NEW)) as present:
                await consumer.ack(message, txn=present)


async def test_old_ids_and_times(stores: Stores) -> None:
    """Ids of messages from before the migration are valid: to read after, to seek to; times find both segments."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        ids, texts = [], [b"%d" % number for number in range(4)]
        for number in range(0, len(texts), 2):
            ids += await sender.send_many(texts[number : number + 2])
            await migrate(client)
        assert len({one.segment for one in ids}) == 2
        for topic in (OLD, NEW):
            for at in (0, 2):  # the first message of each segment; other segments are read from the beginning
                found = [one.value async for one in await client.reader(topic, start=ids[at])]
                assert found == [one for one in texts if one != texts[at]]
            stored = {one.id: one.published_ms async for one in await client.reader(topic)}
            assert list(stored) == ids
            for to in ("latest", min(stored.values())):
                await client.seek(topic, "billing", to)
                assert (await client.lag(topic, "billing")).messages == (0 if to == "latest" else len(texts))
            await client.seek(topic, "billing", "latest")
            await client.seek(topic, "billing", ids[2])
            assert (await client.lag(topic, "billing")).messages == 2
            async with await client.consumer(topic, "billing") as consumer:
                assert await take(client, consumer, topic, 2) == texts[2:]


async def test_retention_and_quotas(stores: Stores) -> None:
    """All segments count for the quota, and are trimmed when they are acknowledged, but for the end of each."""
    bounds = {"retention": {"time_ms": 0, "bytes": 0}, "backlog_quota": {"messages": 3, "interval_ms": 1}}

    async def roll(client: Client) -> None:
        layout = await client.layout(OLD)
        for segment in layout.active():
            await (await client.host.segment(str(layout.name_of(segment.id)), layout.life)).ledger.roll()

    async def fill(client: Client) -> None:
        for _ in range(1_000):
            await (await client.producer(NEW)).send(b"too many")
            await client.maintain()

    async with stores.open(**BOTH, **bounds) as client:
        await client.create_topic(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        sender = await client.producer(OLD)
        await sender.send(b"1")
        await roll(client)
        await sender.send(b"2")
        await migrate(client)
        await sender.send(b"3")
        with pytest.raises(BacklogQuotaExceeded):
            await fill(client)
        stored = await values(client, NEW)
        assert stored[:3] == [b"1", b"2", b"3"]
        async with await client.consumer(NEW, "billing") as consumer:
            assert await take(client, consumer, NEW, len(stored)) == stored
        await roll(client)
        await client.maintain()
        assert await values(client, NEW) == [b"2"]
        await (await client.producer(NEW)).send(b"4")
        assert await values(client, NEW) == [b"2", b"4"]


@pytest.mark.parametrize("order", ["position", "commit"])
async def test_compaction(stores: Stores, order: Literal["position", "commit"]) -> None:
    """Each segment is compacted by the outcomes of the family that wrote to it, and by the times of its commits."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        expected = []
        for number in range(2):
            domain = await client.transaction_domain(OLD)
            first, second, dropped = (client.transaction(domain=domain) for _ in range(3))
            for txn, value in ((first, b"first"), (second, b"second"), (dropped, b"dropped")):
                await txn.begin()
                await sender.send(value, key=b"k%d" % number, txn=txn)
            for txn in (second, first):
                await txn.commit()
                environment = client.host.environment
                await environment.sleep_until(environment.now_ms() + 2)  # so that the times of the commits differ
            await dropped.abort()
            expected.append((b"k%d" % number, b"second" if order == "position" else b"first"))
            await migrate(client)
            await client.compact(NEW, order=order)
            reader = await client.reader(NEW, compacted=True)
            assert [(one.key, one.value) async for one in reader] == expected


async def test_deleted_meanwhile(stores: Stores) -> None:
    """A topic is not deleted while it migrates, and does not migrate back afterwards."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        old, new = names(OLD, NEW)
        migrations = client.topics.migrations
        assert await migrations.plan(old, new)
        with pytest.raises(TopicInUse, match="it migrates to"):
            await client.delete_topic(OLD, force=True)
        await migrations.migrate(old, new)
        with pytest.raises(MigrationRefused, match="copy to a new topic"):
            await migrations.migrate(new, old)
        with pytest.raises(MigrationRefused, match="does not return"):
            await migrations.withdraw(old)
        assert await values(client, NEW) == [b"1"]
        await client.delete_topic(NEW, force=True)
