"""A topic migrates between the families, and something else happens at the same moment, or long before or after."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, take, values

from txnframework import Client
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.broker.topics.migration_outcomes import OutcomeRecorder
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
from txnframework.model import Step
from txnframework.model import migration_changes as changes
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import METADATA_FAMILY, Branch
from txnframework.model.index_keys import prefix_range
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.layout_changes import deleted, with_subscription
from txnframework.model.metadata import PutSequential
from txnframework.model.names import TopicName
from txnframework.model.paths import operations_prefix
from txnframework.model.positions import EARLIEST
from txnframework.model.records import AckDocument, AckOperation, encode
from txnframework_metadata.records.operations import operation_indexes

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

SCALABLE, LOGGED = NEW, OLD
OTHERS = "topic://public/default/others"


def names(*texts: str) -> tuple[TopicName, ...]:
    return tuple(TopicName.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("owner", "name", "is_after"),
    [(StoredCursor, "admit", False), (StoredCursor, "admit", True), (OutcomeRecorder, "settle", False)],
    ids=["before the limit", "after the limit", "after the look"],
)
def test_a_transaction_is_committed_meanwhile(
    stores: Stores, owner: type, name: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nothing of it is lost, and nothing acknowledged is delivered again.

    Where a commit also moves the cursor, it perhaps expects a cursor that has just been limited.
    """

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(SCALABLE)
            sender = await elsewhere.producer(SCALABLE)
            consumer = await elsewhere.consumer(SCALABLE, "billing", start="earliest")
            await sender.send_many([b"1", b"2"])
            first = await consumer.receive(timeout_ms=SOON_MS)
            txn = elsewhere.transaction()
            await txn.begin()
            await consumer.ack(first, txn=txn)
            await sender.send(b"3", txn=txn)
            step, done = getattr(owner, name), False

            async def beside(*arguments: Any) -> Any:
                nonlocal done
                if done:
                    return await step(*arguments)
                done = True
                result = await step(*arguments) if is_after else None
                await txn.commit()
                return result if is_after else await step(*arguments)

            monkeypatch.setattr(owner, name, beside)
            await migrate(client, SCALABLE, LOGGED)
            assert done
            assert await values(client, LOGGED) == [b"1", b"2", b"3"]
            assert await take(elsewhere, consumer, SCALABLE, 2) == [b"2", b"3"]
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=20)

    stores.run(work())


def test_acknowledged_too_late(stores: Stores) -> None:
    """What a process stored that was killed before it could find the limit has no effect, and is removed."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            await client.create_topic(OTHERS)
            await client.subscribe(SCALABLE, "billing", start="earliest")
            sent = await (await client.producer(SCALABLE)).send(b"1")
            txn = client.transaction()
            await txn.begin()
            await (await client.producer(OTHERS)).send(b"1", txn=txn)
            await migrate(client, SCALABLE, LOGGED)
            store = client.host.metadata
            late = AckOperation(
                branch=0,
                segment=sent.segment,
                subscription="billing",
                incarnation=1,
                acks=[AckDocument(position=str(sent.position.entry))],
            )
            write = PutSequential(operations_prefix(txn.id), encode(late), operation_indexes(txn.id, late))
            await store.apply(Step(puts=(write,)))
            held = prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, sent.segment, "billing")
            assert (await store.scan_index(held, 10)).records
            consumer = await client.consumer(LOGGED, "billing")
            assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"1"
            await txn.abort()
            await (await client.host.coordinator("segment")).settle(txn.id)
            assert not (await store.scan_index(held, 10)).records
            await consumer.redeliver_unacknowledged()
            assert await take(client, consumer, LOGGED, 1) == [b"1"]

    stores.run(work())


def test_two_topics_want_one_name(stores: Stores) -> None:
    """The first one keeps it: before its migration is decided, and after; the other one goes on as it was."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            for topic in (SCALABLE, OTHERS):
                await client.create_topic(topic)
                await (await client.producer(topic)).send(topic.encode())
            scalable, others, logged = names(SCALABLE, OTHERS, LOGGED)
            migrations = client.topics.migrations
            assert await migrations.plan(scalable, logged)
            with pytest.raises(TopicExists):
                await migrations.plan(others, logged)
            layouts = StoredLayouts(client.host.metadata)
            layout, version = await layouts.load(scalable)
            await layouts.put(changes.decided(layout, EARLIEST), version)
            with pytest.raises(TopicExists):
                await migrations.migrate(others, logged)
            assert await values(client, OTHERS) == [OTHERS.encode()]
            await migrations.finish(scalable)
            assert await values(client, LOGGED) == [SCALABLE.encode()]
            # A plan that was withdrawn, and whose reservation is left after a crash, keeps the name from nobody.
            elsewhere = replace(logged, name="elsewhere")
            assert await migrations.plan(others, elsewhere)
            layout, version = await layouts.load(others)
            await layouts.put(changes.withdrawn(layout), version)
            await client.create_topic(str(elsewhere))
            assert await values(client, str(elsewhere)) == []

    stores.run(work())


def test_back_before_the_last_step(stores: Stores) -> None:
    """A topic whose old record does not refer to it yet, because of a crash, migrates back to the old name."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(OLD)
            await (await client.producer(OLD)).send(b"1")
            layouts, (old, new) = StoredLayouts(client.host.metadata), names(OLD, NEW)
            assert await client.topics.migrations.plan(old, new)
            layout, _ = await layouts.load(old)
            await migrate(client)
            found = await layouts.find(old)
            assert found is not None
            decided = replace(changes.decided(layout, EARLIEST), epoch=found[0].epoch + 1)
            await layouts.put(decided, found[1])
            await migrate(elsewhere, NEW, OLD)
            for one in (client, elsewhere):
                assert await values(one, OLD) == await values(one, NEW) == [b"1"]
            await elsewhere.delete_topic(NEW)
            for topic in (OLD, NEW):
                await client.create_topic(topic)
                assert await values(client, topic) == []

    stores.run(work())


def test_a_name_whose_topic_is_being_deleted(stores: Stores) -> None:
    """What is left of the deleted topic is removed first: the topic that gets its name does not name it any more."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            for topic in (SCALABLE, LOGGED):
                await client.create_topic(topic)
            await (await client.producer(LOGGED)).send(b"deleted")
            layouts, (logged,) = StoredLayouts(client.host.metadata), names(LOGGED)
            layout, version = await layouts.load(logged)
            await layouts.put(deleted(layout), version)
            await migrate(client, SCALABLE, LOGGED)
            assert await values(client, LOGGED) == []
            with pytest.raises(LedgerNotFound):
                await client.host.ledgers.open(LOGGED)
            await client.delete_topic(LOGGED)
            await client.create_topic(LOGGED)
            assert await values(client, LOGGED) == []

    stores.run(work())


def test_a_topic_of_an_earlier_life_is_not_deleted(stores: Stores) -> None:
    """Who knows the topic from before any of its migrations is told to follow, not that the topic was deleted."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            known: list[tuple[str, int]] = []
            await client.create_topic(OLD)
            for number in range(4):
                layout = await client.layout(OLD)
                known += [(str(layout.name_of(one.id)), layout.life) for one in layout.in_order()]
                await migrate(client, *((OLD, NEW) if number % 2 == 0 else (NEW, OLD)))
            deletion = client.topics.deletion
            assert not [one for one in known if await deletion.is_deleted(*one)]
            await client.delete_topic(OLD)
            await client.create_topic(OLD)
            assert [one for one in known if await deletion.is_deleted(*one)] == known

    stores.run(work())


def test_a_cursor_that_no_process_has_made(stores: Stores) -> None:
    """It is made and limited by the migration: one that is made later would take acknowledgments of either family."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            sent = await (await client.producer(SCALABLE)).send(b"1")
            layouts, (scalable,) = StoredLayouts(client.host.metadata), names(SCALABLE)
            layout, version = await layouts.load(scalable)
            await layouts.put(with_subscription(layout, "billing", {}), version)
            await migrate(client, SCALABLE, LOGGED)
            cursor = await StoredCursor(client.host.metadata, LOGGED, sent.segment, "billing").load()
            assert not cursor.admits(METADATA_FAMILY)
            async with await client.consumer(LOGGED, "billing") as consumer:
                assert await take(client, consumer, LOGGED, 1) == [b"1"]

    stores.run(work())


def test_a_paused_migration_seals_no_later_acknowledgments(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is paused before it seals, and goes on when the topic has migrated there and back."""

    async def work() -> None:
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
            await migrate(elsewhere, NEW, OLD)
            goes_on.set()
            await first
            async with await client.consumer(OLD, "billing") as consumer:
                assert await take(client, consumer, OLD, 1) == [b"1"]

    stores.run(work())


def test_a_subscription_that_is_opened_meanwhile(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening begins before the topic migrates and ends afterwards: the next caller gets that of the new topic."""

    async def work() -> None:
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

    stores.run(work())


@pytest.mark.parametrize("hops", [(OLD, NEW), (OLD, NEW, OLD), (NEW, OLD)], ids=["there", "there and back", "back"])
def test_not_subscribed_during_the_migration(stores: Stores, hops: tuple[str, ...]) -> None:
    """A process that does not know of the migration cannot acknowledge for the subscription that is made afterwards."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(hops[0])
            sent = await (await client.producer(hops[0])).send(b"1")
            await client.subscribe(hops[0], "billing", start="earliest")
            stale = (await client.host.subscription(hops[0], "billing", sent.segment)).pending_acks
            await client.unsubscribe(hops[0], "billing")
            for old, new in pairwise(hops):
                await migrate(elsewhere, old, new)
            await elsewhere.subscribe(hops[-1], "billing", start="earliest")
            async with await elsewhere.consumer(hops[-1], "billing") as consumer:
                message = await consumer.receive(timeout_ms=SOON_MS)
                cursor = await StoredCursor(client.host.metadata, hops[-1], sent.segment, "billing").load()
                txn = client.transaction(domain="persistent" if hops[0] == OLD else "segment")
                await txn.begin()
                request = AckRequest(Branch(txn.id), (Ack(sent.position.entry, 1),), incarnation=cursor.incarnation)
                with pytest.raises((TransactionConflict, TransactionNotFound)):
                    await stale.add(request)
                await txn.abort()
                async with elsewhere.transaction(domain=await elsewhere.transaction_domain(hops[-1])) as present:
                    await consumer.ack(message, txn=present)

    stores.run(work())


def test_a_paused_migration_limits_no_later_cursor(stores: Stores) -> None:
    """A subscription is deleted and made again between two migrations; a process that is still in the first one."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            sent = await (await client.producer(SCALABLE)).send(b"1")
            await client.subscribe(SCALABLE, "billing", start="earliest")
            paused = StoredCursor(client.host.metadata, SCALABLE, sent.segment, "billing")
            await migrate(client, SCALABLE, LOGGED)
            limited = await paused.load()
            await client.unsubscribe(LOGGED, "billing")
            await client.subscribe(LOGGED, "billing", start="earliest")
            await migrate(client, LOGGED, SCALABLE)
            await paused.admit(limited.family, limited.family_life)
            consumer = await client.consumer(SCALABLE, "billing")
            assert await take(client, consumer, SCALABLE, 1) == [b"1"]

    stores.run(work())


def test_old_ids_and_times(stores: Stores) -> None:
    """Ids of messages from before each migration are valid: to read after, to seek to; times find all segments."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(OLD)
            sender = await client.producer(OLD)
            await client.subscribe(OLD, "billing", start="earliest")
            ids, texts = [], [b"%d" % number for number in range(6)]
            for number in range(0, len(texts), 2):
                ids += await sender.send_many(texts[number : number + 2])
                await migrate(client, *((OLD, NEW) if number % 4 == 0 else (NEW, OLD)))
            assert len({one.segment for one in ids}) == 3
            for topic in (OLD, NEW):
                for at in (0, 2, 4):  # the first message of each segment; other segments are read from the beginning
                    found = [one.value async for one in await client.reader(topic, start=ids[at])]
                    assert found == [one for one in texts if one != texts[at]]
                stored = {one.id: one.published_ms async for one in await client.reader(topic)}
                assert list(stored) == ids
                for to in ("latest", min(stored.values())):
                    await client.seek(topic, "billing", to)
                    assert (await client.lag(topic, "billing")).messages == (0 if to == "latest" else len(texts))
                await client.seek(topic, "billing", "latest")
                await client.seek(topic, "billing", ids[4])
                assert (await client.lag(topic, "billing")).messages == 2
                async with await client.consumer(topic, "billing") as consumer:
                    assert await take(client, consumer, topic, 2) == texts[4:]

    stores.run(work())


def test_retention_and_quotas(stores: Stores) -> None:
    """All segments count for the quota, and are trimmed when they are acknowledged, but for the end of each."""
    bounds = {"retention": {"time_ms": 0, "bytes": 0}, "backlog_quota": {"messages": 3, "interval_ms": 1}}

    async def roll(client: Client) -> None:
        layout = await client.layout(SCALABLE)
        for segment in layout.active():
            await (await client.host.segment(str(layout.name_of(segment.id)), layout.life)).ledger.roll()

    async def fill(client: Client) -> None:
        for _ in range(1_000):
            await (await client.producer(SCALABLE)).send(b"too many")
            await client.maintain()

    async def work() -> None:
        async with stores.open(**BOTH, **bounds) as client:
            await client.create_topic(SCALABLE)
            await client.subscribe(SCALABLE, "billing", start="earliest")
            sender = await client.producer(SCALABLE)
            await sender.send(b"1")
            await roll(client)
            await sender.send(b"2")
            await migrate(client, SCALABLE, LOGGED)
            await sender.send(b"3")
            with pytest.raises(BacklogQuotaExceeded):
                await fill(client)
            stored = await values(client, LOGGED)
            assert stored[:3] == [b"1", b"2", b"3"]
            async with await client.consumer(LOGGED, "billing") as consumer:
                assert await take(client, consumer, LOGGED, len(stored)) == stored
            await roll(client)
            await client.maintain()
            assert await values(client, LOGGED) == [b"2"]
            await (await client.producer(LOGGED)).send(b"4")
            await migrate(client, LOGGED, SCALABLE)
            assert await values(client, SCALABLE) == [b"2", b"4"]

    stores.run(work())


@pytest.mark.parametrize("order", ["position", "commit"])
def test_compaction(stores: Stores, order: Literal["position", "commit"]) -> None:
    """Each segment is compacted by the outcomes of the family that wrote to it, and by the times of its commits."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            sender = await client.producer(SCALABLE)
            expected = []
            for number, (old, new) in enumerate([(SCALABLE, LOGGED), (LOGGED, SCALABLE)] * 2):
                domain = await client.transaction_domain(SCALABLE)
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
                await migrate(client, old, new)
                await client.compact(SCALABLE, order=order)
                reader = await client.reader(SCALABLE, compacted=True)
                assert [(one.key, one.value) async for one in reader] == expected

    stores.run(work())


def test_split_and_deleted_meanwhile(stores: Stores) -> None:
    """A topic that is split after the plan does not migrate until it is merged; it is not deleted while it migrates."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            await (await client.producer(SCALABLE)).send(b"1")
            scalable, logged = names(SCALABLE, LOGGED)
            migrations = client.topics.migrations
            assert await migrations.plan(scalable, logged)
            low, high = await client.split(SCALABLE, 0)
            with pytest.raises(MigrationRefused, match="merge its segments 1, 2 first"):
                await migrations.migrate(scalable, logged)
            with pytest.raises(TopicInUse, match="it migrates to"):
                await client.delete_topic(SCALABLE, force=True)
            await client.merge(SCALABLE, low, high)
            await migrations.migrate(scalable, logged)
            assert await values(client, SCALABLE) == [b"1"]
            await client.delete_topic(SCALABLE, force=True)

    stores.run(work())
