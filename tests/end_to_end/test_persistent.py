"""Topics persistent://: without transactions while their plugins are not installed, with them as soon as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from installed import without_log_family

from txnframework import Client, Message, TopicName, TxnID
from txnframework.broker import AttachRequest, Listener, SubscriptionRef
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import (
    ConsumerBusy,
    InvalidInput,
    InvalidName,
    LayoutConflict,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    ReceiveTimeout,
    SubscriptionNotFound,
    SubscriptionOwnedElsewhere,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
    Unavailable,
    WithoutTransactions,
)
from txnframework.model import Append, Branch
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.layout_changes import deleted, with_family
from txnframework.model.paths import abort_records_range
from txnframework.plugin import PluginRegistry, load_plugins

if TYPE_CHECKING:
    from conftest import Stores

ORDERS = "persistent://public/default/orders"
SOON_MS = 60_000
METADATA = dict.fromkeys(("coordinator", "buffer", "pending_ack"), "metadata")
WITH_TRANSACTIONS: dict[str, Any] = {"domains": {"persistent": METADATA}}


@pytest.fixture(scope="module")
def registry() -> Iterator[PluginRegistry]:
    """All installed plugins without the configured family, because most tests are about its absence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txnframework.plugin._discovery.entry_points", without_log_family)
        yield load_plugins()


async def take(consumer: Any, messages: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=SOON_MS) for _ in range(messages)]


async def append_in(client: Client, branch: Branch, value: bytes) -> None:
    """Append as a process does that has plugins of another family for this topic."""
    ledger = await client.host.ledgers.open(ORDERS)
    data = encode_entry([EntryMessage(None, value, (), 0, 0)], "elsewhere", branch)
    await ledger.append((Append(data, 1, branch),), (await ledger.tail()).open_ledger_id)


async def refused(client: Client, operation: Callable[[Any], Awaitable[object]]) -> TransactionDomainMismatch:
    """Use an unsupported transaction; return the error, once the transaction was aborted for it."""
    txn = client.transaction()
    await txn.begin()
    with pytest.raises(TransactionDomainMismatch) as mismatch:
        await operation(txn)
    with pytest.raises(TransactionHasFailedOperations) as failed:
        await txn.commit()
    assert failed.value.__cause__ is mismatch.value
    return mismatch.value


# -- what works ----------------------------------------------------------------------------------------


async def test_it_is_one_segment_that_bears_its_name(stores: Stores) -> None:
    """The layout and the ledger have the topic's name; a topic:// topic of that name is separate; both are listed."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        await client.create_topic("orders", segments=2)
        layout = await client.layout(ORDERS)
        assert [str(layout.name_of(segment.id)) for segment in layout.active()] == [ORDERS]
        assert await client.host.ledgers.list_names("persistent:", "", 10) == (ORDERS,)
        names = [str(name) for name in await client.topics.list()]
        assert names == [ORDERS, "topic://public/default/orders"]
        assert await client.topics.list("public", "default", "persistent") == (TopicName.parse(ORDERS),)
        producer = await client.producer(ORDERS)
        sent = await producer.send(b"1", key=b"k")
        assert sent.segment == ORDERS
        assert (await stores.read(client, ORDERS), await stores.read(client, "orders")) == ([b"1"], [])
        with pytest.raises(TopicExists):
            await client.create_topic(ORDERS)
        await client.create_topic(ORDERS, exist_ok=True)


def test_consuming_one_by_one(stores: Stores) -> None:
    """An exclusive consumer gets everything in order; what it did not acknowledge comes again, also after a restart."""

    async def before() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            await producer.send_many([b"%d" % number for number in range(4)])
            async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
                first, second, third, fourth = await take(consumer, 4)
                with pytest.raises(ConsumerBusy):
                    await client.consumer(ORDERS, "billing")
                await consumer.ack(first.id, third)
                await consumer.nack(second, fourth)
                again = await take(consumer, 2)
                assert [(one.value, one.redelivery_count) for one in again] == [(b"1", 1), (b"3", 1)]
                await producer.send(b"4")
                assert [one.value for one in await take(consumer, 1)] == [b"4"]

    async def after() -> None:
        async with stores.open() as client:
            async with await client.consumer(ORDERS, "billing") as consumer:
                assert await stores.receive(consumer, 3) == [b"1", b"3", b"4"]
                await consumer.redeliver_unacknowledged()
                received = await take(consumer, 3)
                assert [one.value for one in received] == [b"1", b"3", b"4"]
                await consumer.ack_cumulative(received[1])
            async with await client.consumer(ORDERS, "billing") as consumer:
                assert await stores.receive(consumer, 1) == [b"4"]

    stores.run(before())
    stores.run(after())


async def test_consuming_together(stores: Stores) -> None:
    """Consumers of a shared subscription divide the messages; each comes to one of them."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        options: dict[str, Any] = {"type": "shared", "start": "earliest"}
        consumers = [await client.consumer(ORDERS, "billing", **options) for _ in range(2)]
        await (await client.producer(ORDERS)).send_many([b"%d" % number for number in range(20)])
        received: list[bytes] = []

        async def work_on(consumer: Any) -> None:
            while len(received) < 20:
                try:
                    message = await consumer.receive(timeout_ms=50)
                except ReceiveTimeout:
                    continue
                received.append(message.value)
                await consumer.ack(message)

        await asyncio.gather(*map(work_on, consumers))
        assert sorted(received) == sorted(b"%d" % number for number in range(20))
        for consumer in consumers:
            await consumer.close()


async def test_seeking_and_reading(stores: Stores) -> None:
    """A subscription moves to a message, to a time and begins at either end; readers see the same, and follow."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        sent = [await producer.send(b"%d" % number) for number in range(4)]
        async with await client.consumer(ORDERS, "late") as late:
            async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
                await consumer.ack_cumulative((await take(consumer, 4))[-1])
                await consumer.seek(sent[2])
                assert await stores.receive(consumer, 2) == [b"2", b"3"]
                await consumer.seek(0)
                assert await stores.receive(consumer, 4) == [b"0", b"1", b"2", b"3"]
            reader = await client.reader(ORDERS, start=sent[1], follow=True)
            followed: list[bytes] = []

            async def follow() -> None:
                async for message in reader:
                    followed.append(message.value)
                    if message.value == b"4":
                        return

            following = asyncio.ensure_future(follow())
            await producer.send(b"4")
            await following
            await reader.close()
            assert followed == [b"2", b"3", b"4"]
            assert await stores.receive(late, 1) == [b"4"]
        assert await stores.read(client, ORDERS, start="latest") == []
        expected = [b"%d" % number for number in range(5)]
        assert await stores.read(client, ORDERS, isolation="read_uncommitted") == expected
        await client.topics.unsubscribe(TopicName.parse(ORDERS), "late")
        with pytest.raises(SubscriptionNotFound):
            await client.topics.unsubscribe(TopicName.parse(ORDERS), "late")
        await client.topics.subscribe(TopicName.parse(ORDERS), "late", "earliest")
        async with await client.consumer(ORDERS, "late") as late:
            assert await stores.receive(late, 5) == expected


def test_a_message_that_is_sent_again_is_stored_once(stores: Stores) -> None:
    """The same producer and sequence id, also across a restart, and by two processes at a time."""

    async def before() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS, name="shop")
            first = await producer.send(b"1", sequence_id=1)
            assert await producer.send(b"1", sequence_id=1) == first

    async def after() -> None:
        async with stores.open() as client, stores.open() as elsewhere:
            producers = [await one.producer(ORDERS, name="shop") for one in (client, elsewhere)]
            for sequence in (1, 2, 3):
                sends = (one.send(b"%d" % sequence, sequence_id=sequence) for one in producers)
                assert len(set(await asyncio.gather(*sends))) == 1
            assert await stores.read(client, ORDERS) == [b"1", b"2", b"3"]

    stores.run(before())
    stores.run(after())


async def test_two_processes_share_it(stores: Stores) -> None:
    """One dispatches a subscription at a time, the other takes over when it leaves, with nothing lost or repeated."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic(ORDERS)
        consumer = await client.consumer(ORDERS, "billing", start="earliest")
        with pytest.raises(SubscriptionOwnedElsewhere):
            await elsewhere.consumer(ORDERS, "billing")
        producer = await elsewhere.producer(ORDERS)
        await producer.send(b"1")
        (message,) = await take(consumer, 1)
        await consumer.ack(message)
        await consumer.close()
        async with await elsewhere.consumer(ORDERS, "billing") as follower:
            await producer.send(b"2")
            assert await stores.receive(follower, 1) == [b"2"]


async def test_waiting_reads_nothing(memory: Stores) -> None:
    """Behaviour 12: a consumer that waits asks the ledger nothing until something is written, by whichever process."""
    async with memory.open() as client, memory.open() as elsewhere:
        await client.create_topic(ORDERS)
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            for _ in range(1_000):
                await asyncio.sleep(0)
            ledger: Any = (await client.host.segment(ORDERS)).ledger
            asked: list[str] = []
            ask = ledger.link.read

            async def spy(read: Any) -> Any:
                asked.append(repr(read))
                return await ask(read)

            ledger.link.read = spy
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert asked == []
            await (await elsewhere.producer(ORDERS)).send(b"1")
            assert await memory.receive(consumer, 1) == [b"1"]
            assert asked


def test_without_await(stores: Stores) -> None:
    """The blocking facade does the same."""
    with stores.open_blocking() as client:
        client.create_topic(ORDERS)
        with client.producer(ORDERS) as producer, client.consumer(ORDERS, "billing", start="earliest") as consumer:
            producer.send_many([b"1", b"2"])
            for message in consumer:
                consumer.ack(message)
                if message.value == b"2":
                    break
            with pytest.raises(ReceiveTimeout):
                consumer.receive(timeout_ms=1)
            txn = client.transaction()
            txn.begin()
            with pytest.raises(TransactionDomainMismatch):
                producer.send(b"3", txn=txn)
            txn.abort()


async def test_trimming(stores: Stores) -> None:
    """Whole ledgers go, and what is sent again is known afterwards."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS, name="shop")
        await producer.send(b"1", sequence_id=1)
        opened = await client.host.segment(ORDERS)
        await opened.ledger.roll()
        kept = await producer.send(b"2", sequence_id=2)
        swept = await opened.buffer.trim(kept.position.ledger_id)
        assert (swept.done, swept.left) == (1, 0)
        assert (await opened.buffer.trim(kept.position.ledger_id)).done == 0
        await producer.send(b"1", sequence_id=1)
        assert await client.host.ledgers.list_names("persistent:", "", 10) == (ORDERS,)
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            assert await stores.receive(consumer, 1) == [b"2"]


async def test_retention(stores: Stores) -> None:
    """What every subscription has acknowledged goes by the same rule as elsewhere, with no coordinator in sight."""
    async with stores.open(retention={"time_ms": 0}) as client:
        await client.create_topic(ORDERS)
        consumer = await client.consumer(ORDERS, "billing", start="earliest")
        producer = await client.producer(ORDERS)
        ledger = (await client.host.segment(ORDERS)).ledger
        for value in (b"1", b"2", b"3"):
            await producer.send(value)
            await ledger.roll()
        await consumer.ack_cumulative((await take(consumer, 2))[-1])
        await client.host.maintenance.round()
        assert await stores.read(client, ORDERS) == [b"3"]
        await consumer.close()


async def test_a_sealed_ledger_fails_the_send(stores: Stores) -> None:
    """A sealed ledger without children makes the send fail; no caller is blocked."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        await producer.send(b"1")
        await (await client.host.segment(ORDERS)).ledger.seal()
        with pytest.raises(LedgerSealed):
            await producer.send(b"2")
        await producer.close()
        assert await stores.read(client, ORDERS) == [b"1"]


# -- what is refused -----------------------------------------------------------------------------------


async def test_what_it_is_not_made_for(stores: Stores) -> None:
    """Refusals of unsupported operations name the rule: one segment only, and the rules of names and internal
    topics.
    """
    async with stores.open() as client:
        with pytest.raises(InvalidInput, match="a persistent:// topic has one"):
            await client.create_topic(ORDERS, segments=2)
        await client.create_topic(ORDERS)
        for change in (client.split(ORDERS, 0), client.merge(ORDERS, 0, 1)):
            with pytest.raises(LayoutConflict, match="only topic:// topics are split and merged"):
                await change
        for name in ("__offsets", "persistent://public/default/__offsets", "__system/logs/a", "public/__logs/a"):
            with pytest.raises(InvalidName, match="'__' are reserved for internal topics"):
                await client.create_topic(name)
        assert await client.topics.list() == (TopicName.parse(ORDERS),)


async def test_a_transaction_is_refused_before_anything_is_written(stores: Stores) -> None:
    """The error names the family, the topic and what is missing; the transaction is aborted, elsewhere too."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        await client.create_topic("invoices")
        orders, invoices = await client.producer(ORDERS), await client.producer("invoices")
        await orders.send(b"1")
        consumer = await client.consumer(ORDERS, "billing", start="earliest")
        (message,) = await take(consumer, 1)
        tail = await (await client.host.segment(ORDERS)).ledger.tail()

        async def send(txn: Any) -> None:
            await invoices.send(b"never", txn=txn)
            await orders.send(b"2", txn=txn)

        for operation in (
            send,
            lambda txn: consumer.ack(message, txn=txn),
            lambda txn: consumer.ack_cumulative(message, txn=txn),
        ):
            mismatch = await refused(client, operation)
            assert (mismatch.family, mismatch.topic) == ("metadata", ORDERS)
            for named in ("'log'", "'marker'", "are not installed"):
                assert named in str(mismatch)
        assert await (await client.host.segment(ORDERS)).ledger.tail() == tail
        assert await stores.read(client, "invoices") == []

        await consumer.ack(message)  # still theirs, outside transactions
        part = client.join(TxnID(0x8000, 1))
        with pytest.raises(TransactionDomainMismatch, match="belongs to the log family"):
            await orders.send(b"2", txn=part)
        part = client.join(TxnID(0x8000, 1))
        with pytest.raises(TransactionDomainMismatch, match="it takes those of the metadata family"):
            await invoices.send(b"2", txn=part)
        await consumer.close()


async def test_what_a_transaction_wrote_is_never_shown(stores: Stores) -> None:
    """Another process writes with the plugins: a reader gets the messages before, and then an error.

    Nothing is skipped.
    """
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        await producer.send(b"1")
        await append_in(client, Branch(TxnID(0x8000, 7)), b"undecided")
        await producer.send(b"2")
        for isolation in ("read_committed", "read_uncommitted"):
            async with await client.reader(ORDERS, isolation=isolation) as reader:
                messages = aiter(reader)
                assert (await anext(messages)).value == b"1"
                with pytest.raises(WithoutTransactions, match="'marker'"):
                    await anext(messages)
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            received: list[bytes] = []

            async def receive_all() -> None:
                while True:
                    received.append((await consumer.receive(timeout_ms=SOON_MS)).value)

            with pytest.raises(WithoutTransactions) as told:
                await receive_all()
            assert told.value.segment == ORDERS
            assert received in ([], [b"1"])
        opened = await client.host.segment(ORDERS)
        first = (await opened.ledger.tail()).open_ledger_id
        await opened.ledger.roll()
        for _ in range(2):
            with pytest.raises(WithoutTransactions):
                await opened.buffer.trim(first + 1)
        assert await opened.ledger.trim(first, frozenset()) == first


# -- with plugins --------------------------------------------------------------------------------------


async def test_plugins_that_are_installed_serve_it(stores: Stores) -> None:
    """Whichever family the configuration names, for the domain or for one namespace, its transactions work here."""
    async with stores.open(namespaces={"public/ledger": {"persistent": METADATA}}) as client:
        booked = "persistent://public/ledger/booked"
        for name in (booked, ORDERS, "orders"):
            await client.create_topic(name)
        orders, target = await client.producer("orders"), await client.producer(booked)
        await orders.send(b"1")
        await target.send(b"0")
        consumer = await client.consumer("orders", "booking", start="earliest")
        onward = await client.consumer(booked, "onward", start="earliest")
        (order,), (zero,) = await take(consumer, 1), await take(onward, 1)
        async with client.transaction() as txn:
            await target.send(b"booked 1", txn=txn)
            await consumer.ack(order, txn=txn)
            await onward.ack(zero, txn=txn)
            assert await stores.read(client, booked) == [b"0"]
        assert await stores.receive(onward, 1) == [b"booked 1"]
        async with client.transaction() as txn:
            await target.send(b"never", txn=txn)
            await txn.abort()
        assert await stores.read(client, booked) == [b"0", b"booked 1"]
        elsewhere = await client.producer(ORDERS)
        assert (await refused(client, lambda txn: elsewhere.send(b"1", txn=txn))).topic == ORDERS
        await consumer.close()
        await onward.close()


async def test_a_process_without_plugins_beside_one_with_them(stores: Stores) -> None:
    """It neither delivers what an open transaction acknowledged there, nor settles that, nor hides it from others."""
    async with stores.open(**WITH_TRANSACTIONS) as client, stores.open() as plain:
        await client.create_topic(ORDERS)
        await (await plain.producer(ORDERS)).send_many([b"1", b"2"])
        consumer = await client.consumer(ORDERS, "billing", start="earliest")
        first, _ = await take(consumer, 2)
        txn = client.transaction()
        await txn.begin()
        await consumer.ack(first, txn=txn)
        await consumer.close()
        with pytest.raises(WithoutTransactions, match="billing"):
            await plain.consumer(ORDERS, "billing")
        ended = await (await client.host.coordinator()).describe(txn.id)
        subscribed = await plain.host.subscription(ORDERS, "billing", ORDERS)
        for settle in (subscribed.pending_acks.settle, (await plain.host.segment(ORDERS)).buffer.settle):
            with pytest.raises(Unavailable):
                await settle(ended)
        await txn.commit()
        async with await client.consumer(ORDERS, "billing") as consumer:
            assert await stores.receive(consumer, 1) == [b"2"]
        await (await client.host.coordinator()).settle(txn.id)
        async with await plain.consumer(ORDERS, "billing") as consumer:
            assert await stores.receive(consumer, 1) == [b"2"]


# -- faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["ledgers", "metadata"])
async def test_a_lost_reply_while_it_is_made(memory: Stores, lost: str) -> None:
    """A client that does not know whether the topic exists creates it again; then it exists once and completely."""
    async with memory.open() as client:
        backend: Any = getattr(client.host, lost)
        backend.cut()
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await client.create_topic(ORDERS)
        backend.restore()
        await client.create_topic(ORDERS, exist_ok=True)
        await (await client.producer(ORDERS)).send(b"1")
        assert await memory.read(client, ORDERS) == [b"1"]
        assert len(await client.topics.list()) == 1


async def test_a_lost_reply_while_it_is_written(memory: Stores) -> None:
    """The send is repeated automatically and stored once; the next client completes the subscription."""
    async with memory.open() as client, memory.open() as elsewhere:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        await producer.send(b"1")
        ledgers: Any = client.host.ledgers
        ledgers.cut()
        send = asyncio.ensure_future(producer.send(b"2"))
        for _ in range(20):
            await asyncio.sleep(0)
        ledgers.restore()
        await send
        assert await memory.read(client, ORDERS) == [b"1", b"2"]
        metadata: Any = client.host.metadata
        metadata.cut()
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await client.topics.subscribe(TopicName.parse(ORDERS), "billing", "earliest")
        metadata.restore()
        async with await elsewhere.consumer(ORDERS, "billing", start="earliest") as consumer:
            assert await memory.receive(consumer, 2) == [b"1", b"2"]


async def test_a_topic_that_another_family_was_used_on_is_not_dispatched(stores: Stores) -> None:
    """The topic is refused before any redelivery, because acknowledgments of the other family may be invisible here."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        async with await client.producer(ORDERS) as producer:
            await producer.send_many([b"0", b"1"])
        consumer = await client.consumer(ORDERS, "billing", start="earliest")
        received = await take(consumer, 2)
        layouts = StoredLayouts(client.host.metadata)
        layout, version = await layouts.load(TopicName.parse(ORDERS))
        await layouts.put(with_family(layout, "log"), version)
        await consumer.nack(received[0])
        with pytest.raises(WithoutTransactions, match="log family"):
            await consumer.receive(timeout_ms=SOON_MS)
        await consumer.close()
        with pytest.raises(WithoutTransactions, match="log family"):
            await client.consumer(ORDERS, "billing")
        assert await stores.read(client, ORDERS) == [b"0", b"1"]
        await client.delete_topic(ORDERS, force=True)
        await client.create_topic(ORDERS)
        assert (await client.layout(ORDERS)).families == ()


# -- deleting ------------------------------------------------------------------------------------------


async def test_a_name_that_returns_is_another_topic(stores: Stores) -> None:
    """A topic is deleted and created again by another process: clients find the new topic, without data of the
    old one.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic(ORDERS)
        producer = await elsewhere.producer(ORDERS)
        old = [await producer.send(b"old %d" % number) for number in range(2)]
        async with await elsewhere.consumer(ORDERS, "billing", start="earliest") as consumer:
            first, second = await take(consumer, 2)
            await consumer.ack(first)
        subscribed = await elsewhere.host.subscription(ORDERS, "billing", ORDERS)
        before = await subscribed.cursor.load()
        with pytest.raises(TopicInUse, match="billing"):
            await client.delete_topic(ORDERS)
        await client.delete_topic(ORDERS, force=True)
        for use in (client.producer, elsewhere.producer, elsewhere.layout, elsewhere.reader):
            with pytest.raises(TopicNotFound, match="was deleted"):
                await use(ORDERS)
        assert await client.topics.list() == ()
        assert await client.host.ledgers.list_names("persistent:", "", 10) == ()

        await client.create_topic(ORDERS)
        assert list((await client.layout(ORDERS)).segments) == [0]
        for one in (client, elsewhere):
            sent = await (await one.producer(ORDERS)).send(b"new")
            assert sent.position > old[-1].position
            assert set(await stores.read(one, ORDERS)) == {b"new"}
        async with await elsewhere.consumer(ORDERS, "billing", start="earliest") as consumer:
            assert await stores.receive(consumer, 2) == [b"new", b"new"]
            after = await subscribed.cursor.load()
            assert after.incarnation > before.incarnation
            await consumer.ack(second)  # of the former life: without effect
            assert await subscribed.cursor.load() == after
        async with await elsewhere.consumer(ORDERS, "late") as late:
            await (await client.producer(ORDERS)).send(b"newer")
            assert await stores.receive(late, 1) == [b"newer"]


async def test_a_consumer_of_a_deleted_topic_gets_nothing_of_the_next_one(stores: Stores) -> None:
    """A consumer of the deleted topic is not attached to the next topic of its name, and ends with an error."""
    async with stores.open() as client, stores.open() as elsewhere:
        for life in range(2):
            if life:
                await client.delete_topic(ORDERS, force=True)
            await client.create_topic(ORDERS)
            await client.subscribe(ORDERS, "billing", start="earliest")
            place = SubscriptionRef(ORDERS, "billing", ORDERS, "failover", (await client.layout(ORDERS)).life)
            if not life:
                former = place
        await (await client.producer(ORDERS)).send(b"new")
        listener = Listener(lambda *_: pytest.fail("delivered"), lambda: None, lambda: None, lambda _: None)
        with pytest.raises(LedgerNotFound):
            await elsewhere.host.dispatches.attach(former, AttachRequest("worker", 10), listener)
        assert not elsewhere.host.dispatches.segments_of("billing")
        async with await elsewhere.consumer(ORDERS, "billing", type="failover") as consumer:
            assert await stores.receive(consumer, 1) == [b"new"]


async def test_created_while_it_is_deleted(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is deleted after the creator found it: the new topic does not get the sealed segment."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic(ORDERS)
        await (await client.producer(ORDERS)).send(b"old")
        find = StoredLayouts.find

        async def find_then_delete(layouts: StoredLayouts, topic: TopicName) -> Any:
            found = await find(layouts, topic)
            monkeypatch.setattr(StoredLayouts, "find", find)
            assert found is not None
            assert await layouts.put_if(deleted(found[0]), found[1])  # its process ends here
            return found

        monkeypatch.setattr(StoredLayouts, "find", find_then_delete)
        with pytest.raises(TopicExists):
            await elsewhere.create_topic(ORDERS)
        await elsewhere.create_topic(ORDERS)
        await (await client.producer(ORDERS)).send(b"new")
        assert await stores.read(elsewhere, ORDERS) == [b"new"]


class _Paused:
    """Wraps the objects of one process: a call of ``method`` waits for ``go``, and then happens."""

    def __init__(self, wrapped: Any, method: str) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._wrapped = wrapped
        self._method = method

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name != self._method:
            return found

        async def late(*args: Any) -> Any:
            self.reached.set()
            await self.go.wait()
            return await found(*args)

        return late


@pytest.mark.parametrize("paused_at", ["open", "delete", "forget_segment", "fence"])
async def test_a_paused_deletion_does_nothing_to_the_next_topic_of_the_name(memory: Stores, paused_at: str) -> None:
    """A paused deletion of the former topic resumes, finds another topic under the name, and leaves it unchanged."""
    async with memory.open(**WITH_TRANSACTIONS) as client, memory.open(**WITH_TRANSACTIONS) as elsewhere:
        await client.create_topic(ORDERS)
        await (await client.producer(ORDERS)).send(b"old", key=b"k")
        await client.compact(ORDERS)
        deleting: Any = client.topics.deletion
        coordinator = await client.host.coordinator("persistent")
        if paused_at == "forget_segment":
            paused = _Paused(coordinator, paused_at)

            async def serve(_: str) -> Any:
                return paused

            deleting._coordinator = serve
        elif paused_at == "fence":
            attempts: Any = client.host.compaction.attempts
            paused = attempts._store = _Paused(client.host.metadata, "get")
        else:
            paused = deleting._ledgers = _Paused(client.host.ledgers, paused_at)
        removing = asyncio.ensure_future(client.delete_topic(ORDERS))
        await paused.reached.wait()
        await elsewhere.topics.deletion.finish(TopicName.parse(ORDERS))
        await elsewhere.create_topic(ORDERS)
        async with await elsewhere.producer(ORDERS) as producer:
            txn = elsewhere.transaction()
            await txn.begin()
            await producer.send(b"aborted", txn=txn)
            await txn.abort()
            await (await elsewhere.host.coordinator("persistent")).settle(txn.id)
            await producer.send(b"new", key=b"k")
            await elsewhere.compact(ORDERS)
            following = await client.consumer(ORDERS, "billing", start="earliest")
            paused.go.set()
            await removing
            await producer.send(b"newer")
        assert await memory.receive(following, 2) == [b"new", b"newer"]
        after_expiry = await elsewhere.host.metadata.scan(abort_records_range(ORDERS), 10)
        assert len(after_expiry.records) == 1
        assert await memory.read(elsewhere, ORDERS) == [b"new", b"newer"]
        assert await memory.read(elsewhere, ORDERS, compacted=True) == [b"new", b"newer"]
        assert len(await elsewhere.host.ledgers.list_names("compacted:", "", 10)) == 1


async def test_a_deletion_that_is_tried_again_means_the_topic_that_was_there(memory: Stores) -> None:
    """The reply to the deletion is lost, and others recreate the topic: the repeated deletion leaves the new topic."""
    for topic in (ORDERS, "orders"):
        async with memory.open() as client, memory.open() as elsewhere:
            await client.create_topic(topic)
            deleting: Any = client.topics.deletion
            layouts = deleting._layouts
            paused = _Paused(layouts, "find")
            whole = layouts.put_if

            async def unsure(layout: Any, version: int, *, whole: Any = whole) -> bool:
                await whole(layout, version)
                deleting._layouts = paused  # noqa: B023
                return False

            layouts.put_if = unsure
            removing = asyncio.ensure_future(client.delete_topic(topic))
            await paused.reached.wait()
            layouts.put_if = whole
            await elsewhere.topics.deletion.finish(TopicName.parse(topic))
            await elsewhere.create_topic(topic)
            await (await elsewhere.producer(topic)).send(b"new")
            paused.go.set()
            await removing
            assert await memory.read(elsewhere, topic) == [b"new"]


@pytest.mark.parametrize("topic", [ORDERS, "orders"])
async def test_who_used_the_former_topic_is_told_though_the_name_has_returned(stores: Stores, topic: str) -> None:
    """Users of the former topic get errors: no message is sent to, or received from, the new topic of the name."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic(topic)
        producer, idle = await client.producer(topic), await client.producer(topic)
        await producer.send(b"old")
        consumer = await client.consumer(topic, "billing", start="earliest")
        assert await stores.receive(consumer, 1) == [b"old"]
        reader = aiter(await client.reader(topic, follow=True))
        assert (await anext(reader)).value == b"old"
        await elsewhere.delete_topic(topic, force=True)
        await elsewhere.create_topic(topic)
        await (await elsewhere.producer(topic)).send(b"new")
        for one in (producer, idle, producer):
            with pytest.raises(TopicNotFound, match="was deleted"):
                await one.send(b"late")
        with pytest.raises(TopicNotFound, match="was deleted"):
            await stores.receive(consumer, 1)
        with pytest.raises(TopicNotFound, match="was deleted"):
            await anext(reader)
        await consumer.close()
        assert await stores.read(client, topic) == [b"new"]
        async with await client.producer(topic) as again:
            await again.send(b"newer")
        assert await stores.read(client, topic) == [b"new", b"newer"]
