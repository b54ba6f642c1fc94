"""Using a topic that migrates or has migrated: snapshots, handlers, repeated sends, trimming, copies."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from copied_deployment import Deployments, urls
from migrating import BOTH, LOG, METADATA, NEW, OLD, PLUGINS, SOON_MS, migrate, values

from txnframework import Consumer, Message, Transaction
from txnframework.errors import (
    ConfigurationError,
    InvalidTransactionState,
    MigrationRefused,
    TransactionConflict,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework.model.names import TopicName
from txnframework.model.paths import abort_records_range
from txnframework.plugin import load_plugins

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

SIDECAR: dict[str, Any] = {"domains": {"segment": METADATA, "persistent": LOG | {"buffer": "sidecar"}}}
OTHER = "persistent://public/default/other"
TYPES = ("exclusive", "failover", "shared", "key_shared")


async def taken(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=SOON_MS) for _ in range(count)]


async def test_snapshots_from_before_and_after(stores: Stores) -> None:
    """A snapshot shows the same before and after one of its topics migrates; a transaction is whole in it."""
    async with stores.open(**BOTH) as client:
        for topic in (OLD, OTHER):
            await client.create_topic(topic)
        senders = [await client.producer(topic) for topic in (OLD, OTHER)]
        begun = [client.transaction(domain="persistent") for _ in range(3)]
        for number, txn in enumerate(begun):
            await txn.begin()
            for sender in senders:
                await sender.send(b"%d" % number, txn=txn)
        await begun[0].commit()
        await begun[1].abort()
        before = await client.snapshot(OLD, OTHER)
        await begun[2].commit()
        await migrate(client)
        await senders[0].send(b"later")
        for topic in (OLD, OTHER):
            assert [one.value async for one in await before.reader(topic)] == [b"0"]
        after = await client.snapshot(OLD, OTHER)
        assert [one.value async for one in await after.reader(OLD)] == [b"0", b"2", b"later"]
        assert [one.value async for one in await after.reader(OTHER)] == [b"0", b"2"]
        renamed = await client.snapshot(NEW)
        assert [one.value async for one in await renamed.reader(NEW)] == [b"0", b"2", b"later"]


async def test_snapshot_while_the_topic_migrates(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration between the two looks of a snapshot is followed."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        topics, looks = client.host.topics, 0
        finish_changes = topics.finish_changes

        async def look(topic: TopicName) -> Any:
            nonlocal looks
            looks += 1
            if looks == 2:
                await migrate(client)
            return await finish_changes(topic)

        monkeypatch.setattr(topics, "finish_changes", look)
        found = await client.snapshot(OLD)
        assert looks == 2
        assert [one.value async for one in await found.reader(OLD)] == [b"1"]


async def test_handlers_go_on(stores: Stores) -> None:
    """A handler that runs over a migration handles each message in a transaction, and its messages are sent once."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        await client.create_topic("topic://public/default/out")
        await client.create_topic("persistent://public/default/out")
        sender = await client.producer(OLD)
        outs = {
            domain: await elsewhere.producer(f"{domain}://public/default/out") for domain in ("topic", "persistent")
        }
        consumer = await elsewhere.consumer(OLD, "billing", type="failover", start="earliest")
        handled: list[bytes] = []
        half, done = asyncio.Event(), asyncio.Event()

        async def handle(message: Message, txn: Transaction) -> None:
            domain = "persistent" if txn.id.family == "log" else "topic"
            await outs[domain].send(message.value, txn=txn)
            handled.append(message.value)
            if message.value == b"2":
                half.set()
            if message.value == b"5":
                done.set()

        running = asyncio.ensure_future(consumer.run(handle))
        await sender.send_many([b"0", b"1", b"2"])
        await half.wait()
        await migrate(client)
        await sender.send_many([b"3", b"4", b"5"])
        waiting = asyncio.ensure_future(done.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        consumer.stop()
        await running
        sent = [await values(client, f"{domain}://public/default/out") for domain in ("persistent", "topic")]
        assert sorted(sent[0] + sent[1]) == [b"%d" % number for number in range(6)]
        assert {b"3", b"4", b"5"} <= {*sent[1]}


async def test_repeated_sends_are_stored_once(stores: Stores) -> None:
    """The new topic knows the sequences of the old one: a committed copy counts, an aborted one does not."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD, name="shop")
        await sender.send(b"0", sequence_id=0)
        for number, ends in ((1, "commit"), (2, "abort")):
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await sender.send(b"%d" % number, sequence_id=number, txn=txn)
            await getattr(txn, ends)()
        await migrate(client)
        async with stores.open(**BOTH) as elsewhere:
            again = await elsewhere.producer(NEW, name="shop")
            for number in range(4):
                await again.send(b"%d" % number, sequence_id=number)
            assert await values(elsewhere, OLD) == [b"0", b"1", b"2", b"3"]
            assert await elsewhere.last_sequence_id(NEW, "shop") == 3


@pytest.mark.parametrize("kind", TYPES)
async def test_subscriptions_of_every_type(stores: Stores, kind: str) -> None:
    """What was acknowledged, alone or in a committed transaction, stays so; the rest is delivered in its order."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        consumer = await client.consumer(OLD, "billing", type=kind, start="earliest")
        await sender.send_many([b"%d" % number for number in range(8)], key=b"k")
        messages = await taken(consumer, 8)
        async with client.transaction(domain="persistent") as txn:
            if kind in ("exclusive", "failover"):
                await consumer.ack_cumulative(messages[1], txn=txn)
            else:
                await consumer.ack(*messages[:2], txn=txn)
        await consumer.ack(messages[3])
        dropped = client.transaction(domain="persistent")
        await dropped.begin()
        await consumer.ack(messages[4], txn=dropped)
        await dropped.abort()
        left = client.transaction(domain="persistent")
        await left.begin()
        await consumer.ack(messages[5], txn=left)
        await migrate(client)
        with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
            await left.commit()
        await sender.send(b"8", key=b"k")
        expected = [b"2", b"4", b"5", b"6", b"7", b"8"]
        again = [await consumer.receive(timeout_ms=SOON_MS)]
        async with client.transaction(domain="segment") as txn:
            await consumer.ack(again[0], txn=txn)
        again += await taken(consumer, len(expected) - 1)
        values = [one.value for one in again]
        assert (sorted(values) if kind == "shared" else values) == expected  # a shared subscription has no order
        await consumer.ack(*again[1:])
    # Closing waits until the transaction that was committed here has taken effect.
    async with stores.open(**BOTH) as client:
        await client.maintain()
        assert (await client.lag(NEW, "billing")).messages == 0


async def test_messages_received_before(stores: Stores) -> None:
    """A transaction of the new family acks them, or gets a conflict, after which they are delivered again."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        consumer = await elsewhere.consumer(OLD, "billing", type="shared", start="earliest")
        await (await client.producer(OLD)).send_many([b"%d" % number for number in range(6)])
        received = await taken(consumer, 6)
        await migrate(client)
        done: list[bytes] = []
        for some in (received[:3], received[3:]):
            with suppress(TransactionConflict):
                async with elsewhere.transaction(domain=await elsewhere.transaction_domain(OLD)) as txn:
                    await consumer.ack(*some, txn=txn)
                done += [one.value for one in some]
        while len(set(done)) < 6:
            message = await consumer.receive(timeout_ms=SOON_MS)
            with suppress(TransactionConflict):
                async with elsewhere.transaction() as txn:
                    await consumer.ack(message, txn=txn)
                done.append(message.value)
        assert sorted(done) == [b"%d" % number for number in range(6)]
    async with stores.open(**BOTH) as client:
        await client.maintain()
        assert (await client.lag(OLD, "billing")).messages == 0


async def test_trimming_the_old_segment(stores: Stores) -> None:
    """What every subscription has acknowledged is removed, with its abort records; the rest stays readable."""
    at_once = {"abort_retention_ms": 0, "max_clock_skew_ms": 0}
    async with stores.open(retention={"time_ms": 0}, transactions=at_once, **BOTH) as client:
        await client.create_topic(OLD)
        consumer = await client.consumer(OLD, "billing", start="earliest")
        sender = await client.producer(OLD)
        for number in range(3):
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await sender.send(b"aborted", txn=txn)
            await txn.abort()
            await sender.send(b"%d" % number)
            await (await client.host.segment(OLD)).ledger.roll()
        await migrate(client)
        await sender.send(b"after")
        await consumer.ack(*await taken(consumer, 2))
        for _ in range(2):
            await client.host.maintenance.round()
        assert await values(client, OLD) == [b"2", b"after"]
        left = await client.host.metadata.scan(abort_records_range(OLD), 100)
        assert len(left.records) == 1
        await consumer.close()


async def test_copying(stores: Stores, tmp_path: Path) -> None:
    """A deployment with migrated, planned and deleted topics is copied, and the audit finds no difference."""
    registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in PLUGINS])
    domains = BOTH["domains"]
    both = Deployments(
        registry, urls("sqlite", "source", tmp_path), urls("memory", "target", tmp_path), domains=domains
    )

    async with both.open("source") as client:
        for topic in (OLD, OTHER, "persistent://public/default/gone"):
            await client.create_topic(topic)
            await client.subscribe(topic, "billing", start="earliest")
            sender = await client.producer(topic)
            await sender.send(b"1")
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await sender.send(b"aborted", txn=txn)
            await txn.abort()
        await migrate(client)
        await (await client.producer(NEW)).send(b"2")
        await client.topics.migrations.plan(TopicName.parse(OTHER), TopicName.parse("topic://public/default/other"))
        await migrate(client, "persistent://public/default/gone", "topic://public/default/gone")
        await client.delete_topic("topic://public/default/gone", force=True)
    report = await both.copy(keep_source=True)
    assert report.audit is not None
    assert not report.audit.differing
    for name in ("source", "target"):
        async with both.open(name) as client:
            assert await values(client, OLD) == [b"1", b"2"]
            async with await client.consumer(OLD, "billing") as consumer:
                assert [one.value for one in await taken(consumer, 2)] == [b"1", b"2"]
            await migrate(client, OTHER, "topic://public/default/other")
            assert await values(client, OTHER) == [b"1"]


async def test_a_later_topic_of_the_old_name_is_another(stores: Stores) -> None:
    """A consumer and a producer of a migrated topic that was deleted do not use a later topic of the old name."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        await sender.send(b"1")
        consumer = await elsewhere.consumer(OLD, "billing", start="earliest")
        await migrate(client)
        received = await consumer.receive(timeout_ms=SOON_MS)
        before = (await client.layout(NEW)).life
        await client.delete_topic(NEW, force=True)
        await client.create_topic(OLD)
        assert (await client.layout(OLD)).life > before
        await client.subscribe(OLD, "billing", start="earliest")
        await (await client.producer(OLD)).send(b"another")
        with suppress(Exception):
            await consumer.ack(received)
        with suppress(Exception):
            await sender.send(b"lost")
        assert await values(client, OLD) == [b"another"]
        assert (await client.lag(OLD, "billing")).messages == 1
        with suppress(Exception):
            await consumer.close()


async def test_a_buffer_that_cannot_be_sealed_is_refused(stores: Stores) -> None:
    """Topics with messages beside their segment do not migrate, and stay as they are."""
    async with with_sidecar(stores).open(**SIDECAR) as client:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        old, new = TopicName.parse(OLD), TopicName.parse(NEW)
        assert "sidecar" in (await client.topics.migrations.describe(old, new)).refused
        with pytest.raises(MigrationRefused, match="sidecar"):
            await client.topics.migrations.migrate(old, new)
        assert (await client.layout(OLD)).migration is None
        assert await values(client, OLD) == [b"1"]


async def test_other_plugins_do_not_serve_it(stores: Stores) -> None:
    """A host whose plugins cannot read what the old family wrote refuses the old segment."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        await (await client.producer(OLD)).send(b"1")
        await migrate(client)
    async with stores.open(domains={"segment": LOG, "persistent": LOG}) as client:
        for topic in (OLD, NEW):
            with pytest.raises(ConfigurationError, match="before its topic migrated"):
                await values(client, topic)


async def test_a_transaction_of_the_old_family_over_two_topics(stores: Stores) -> None:
    """It is aborted as a whole when one of its topics migrates, and committed as a whole if it committed before."""
    async with stores.open(**BOTH) as client:
        for topic in (OLD, OTHER):
            await client.create_topic(topic)
        senders = [await client.producer(topic) for topic in (OLD, OTHER)]
        kept, left = client.transaction(domain="persistent"), client.transaction(domain="persistent")
        for txn, value in ((kept, b"kept"), (left, b"left")):
            await txn.begin()
            for sender in senders:
                await sender.send(value, txn=txn)
        await kept.commit()
        await migrate(client)
        with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations, TransactionConflict, Unavailable)):
            await left.commit()
        for topic in (OLD, OTHER):
            assert await values(client, topic) == [b"kept"]


def with_sidecar(stores: Stores) -> Stores:
    """Let the stores be served by the plugins of both families and by the sidecar buffer."""
    names = (*PLUGINS, "sidecar")
    stores.registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in names])
    return stores
