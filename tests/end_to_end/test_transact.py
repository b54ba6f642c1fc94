"""``Client.transact``: operations that are known in advance take effect together, or none does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from txnframework import Client, Consumer, Message, Producer
from txnframework.errors import (
    Closed,
    InvalidInput,
    ReceiveTimeout,
    TransactionConflict,
)
from txnframework.serializers import MsgspecJson

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

SOON_MS = 60_000


class Invoice(msgspec.Struct, frozen=True):
    """What is sent with a serializer."""

    number: int


async def opened(client: Client) -> tuple[Producer, Producer, Consumer]:
    """Create three topics, and return producers of invoices and stock, and a consumer of one order."""
    for topic in ("orders", "invoices", "stock"):
        await client.create_topic(topic)
    consumer = await client.consumer("orders", "billing", start="earliest")
    async with await client.producer("orders") as orders:
        await orders.send(b"order")
    return await client.producer("invoices"), await client.producer("stock"), consumer


async def nothing_left(client: Client, consumer: Consumer) -> None:
    """Check that the subscription has nothing to deliver, now and after a restart of its consumer."""
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout_ms=1)
    await consumer.close()
    async with await client.consumer("orders", "billing") as again:
        with pytest.raises(ReceiveTimeout):
            await again.receive(timeout_ms=1)


async def test_messages_and_acknowledgments_take_effect_together(stores: Stores) -> None:
    """The ids come back in order, and name one committed transaction."""
    async with stores.open() as client:
        invoices, stock, consumer = await opened(client)
        order = await consumer.receive(timeout_ms=SOON_MS)
        sent = await client.transact(
            invoices.outgoing(b"first", key=b"ada", headers={"kind": b"invoice"}),
            stock.outgoing(b"-3 apples"),
            consumer.acknowledging(order),
            invoices.outgoing(b"second", key=b"ada"),
        )
        assert [one.segment for one in sent] == [sent[0].segment, sent[1].segment, sent[0].segment]
        async with await client.reader("invoices") as reader:
            first, second = [message async for message in reader]
        async with await client.reader("stock") as reader:
            (apples,) = [message async for message in reader]
        assert [first.value, apples.value, second.value] == [b"first", b"-3 apples", b"second"]
        assert [first.id, apples.id, second.id] == list(sent)
        assert (first.key, first.headers) == (b"ada", {"kind": b"invoice"})
        assert first.txn_id == apples.txn_id == second.txn_id
        assert first.txn_id is not None
        assert (await client.outcome(first.txn_id)).value == "COMMITTED"
        await nothing_left(client, consumer)


async def test_the_example_of_the_reference(stores: Stores) -> None:
    """What the page of the client shows runs."""
    async with stores.open() as client:
        invoices, stock, orders = await opened(client)
        order = await orders.receive(timeout_ms=SOON_MS)
        invoice, _ = await client.transact(
            invoices.outgoing(b"invoice", key=b"ada"),
            stock.outgoing(b"-3 apples"),
            orders.acknowledging(order),
        )
        assert await client.last_message("invoices") == invoice
        await nothing_left(client, orders)


async def test_a_conflict_lets_nothing_take_effect(stores: Stores) -> None:
    """An acknowledgment that is refused aborts the whole transaction."""
    async with stores.open() as client:
        invoices, stock, consumer = await opened(client)
        order = await consumer.receive(timeout_ms=SOON_MS)
        holder = client.transaction()
        await holder.begin()
        await consumer.ack(order, txn=holder)
        with pytest.raises(TransactionConflict):
            await client.transact(
                invoices.outgoing(b"invoice"), consumer.acknowledging(order), stock.outgoing(b"stock")
            )
        await holder.abort()
        assert await stores.read(client, "invoices") == await stores.read(client, "stock") == []
        again = await consumer.receive(timeout_ms=SOON_MS)
        await client.transact(invoices.outgoing(b"invoice"), consumer.acknowledging(again))
        with pytest.raises(TransactionConflict):
            await client.transact(stock.outgoing(b"twice"), consumer.acknowledging(again.id))
        assert await stores.read(client, "invoices") == [b"invoice"]
        assert await stores.read(client, "stock") == []
        await nothing_left(client, consumer)


async def test_only_acknowledgments_and_only_messages(stores: Stores) -> None:
    """Either kind may be missing; one acknowledgment may cover several messages of a batch."""
    async with stores.open() as client:
        invoices, _, consumer = await opened(client)
        async with await client.producer("orders") as orders:
            await orders.send_many([b"1", b"2", b"3"])
        order, *batch = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(4)]
        assert await client.transact(consumer.acknowledging(order, batch[1].id)) == ()
        assert len(await client.transact(*(invoices.outgoing(b"%d" % number) for number in range(9)))) == 9
        assert await stores.read(client, "invoices") == [b"%d" % number for number in range(9)]
        await client.transact(consumer.acknowledging(batch[0]), consumer.acknowledging(batch[2]))
        await nothing_left(client, consumer)


async def test_many_calls_at_the_same_time(stores: Stores) -> None:
    """Calls of one producer and one subscription do not disturb each other, or sends of the same producer."""
    async with stores.open() as client:
        invoices, stock, consumer = await opened(client)
        async with await client.producer("orders") as orders:
            await orders.send_many([b"%d" % number for number in range(19)])
        received = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(20)]

        async def call(order: Message) -> None:
            await client.transact(
                invoices.outgoing(order.value, key=order.value),
                stock.outgoing(order.value),
                consumer.acknowledging(order),
            )

        await asyncio.gather(*map(call, received), *(stock.send(b"plain") for _ in range(20)))
        expected = sorted(order.value for order in received)
        assert sorted(await stores.read(client, "invoices")) == expected
        assert sorted(await stores.read(client, "stock")) == sorted([*expected, *[b"plain"] * 20])
        await nothing_left(client, consumer)


async def test_chosen_sequence_ids_make_a_call_repeatable(stores: Stores) -> None:
    """A repeated message is confirmed with its id and not stored again."""
    async with stores.open() as client:
        invoices, stock, _ = await opened(client)
        first = await client.transact(invoices.outgoing(b"a", sequence_id=7), invoices.outgoing(b"b", sequence_id=8))
        again = await client.transact(
            invoices.outgoing(b"a", sequence_id=7), invoices.outgoing(b"b", sequence_id=8), stock.outgoing(b"c")
        )
        assert again[:2] == first
        assert await stores.read(client, "invoices") == [b"a", b"b"]
        assert await stores.read(client, "stock") == [b"c"]


@pytest.mark.metadata_family
async def test_segments_serializers_and_delays(stores: Stores) -> None:
    """What ``send`` takes is taken here: keys that choose the segment, contents, and delays."""
    async with stores.open() as client:
        await client.create_topic("invoices", segments=4)
        async with (
            await client.producer("invoices", serializer=MsgspecJson(Invoice)) as invoices,
            await client.consumer("invoices", "audit", type="shared", serializer=MsgspecJson(Invoice)) as consumer,
        ):
            sent = await client.transact(
                *(invoices.outgoing(Invoice(number), key=b"%d" % number) for number in range(8)),
                invoices.outgoing(Invoice(99), deliver_after_ms=3_600_000),
            )
            assert len({one.segment for one in sent}) > 1
            received = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(8)]
            assert sorted(message.content.number for message in received) == list(range(8))
            assert {message.id for message in received} == set(sent[:8])
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=1)


@pytest.mark.metadata_family
async def test_a_split_is_followed(stores: Stores) -> None:
    """A producer that does not know that its segment was split sends to the children."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("invoices")
        producer = await client.producer("invoices")
        (first,) = await client.transact(producer.outgoing(b"before", key=b"k"))
        await elsewhere.split("invoices", 0)
        (second,) = await client.transact(producer.outgoing(b"after", key=b"k"))
        assert first.segment != second.segment
        (third,) = await client.transact(producer.outgoing(b"then", key=b"k"))
        assert third.segment == second.segment
        assert await stores.read(client, "invoices") == [b"before", b"after", b"then"]


async def test_a_cancelled_call_does_everything_or_nothing(stores: Stores) -> None:
    """However far a call has come when it is cancelled, the outcome is the same for all that it covers."""
    async with stores.open() as client:
        invoices, stock, consumer = await opened(client)
        for turns in range(0, 40, 3):
            async with await client.producer("orders") as orders:
                await orders.send(b"order")
            order = await consumer.receive(timeout_ms=SOON_MS)
            call = asyncio.ensure_future(
                client.transact(
                    invoices.outgoing(b"%d" % turns), stock.outgoing(b"%d" % turns), consumer.acknowledging(order)
                )
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await consumer.redeliver_unacknowledged()
        await consumer.close()
    # Closing waited for what was still under way.
    async with stores.open() as client, await client.consumer("orders", "billing") as again:
        done = await stores.read(client, "invoices")
        assert await stores.read(client, "stock") == done
        left = (await client.lag("orders", "billing")).messages
        assert left + len(done) == 14 + 1
        assert len([await again.receive(timeout_ms=SOON_MS) for _ in range(left)]) == left


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_cancelled_call_reports_no_defect(stores: Stores, kind: str) -> None:
    """Wherever a call ends that needs the usual steps, because another one has the message: nothing is reported."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with stores.open() as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        orders, invoices = await client.producer("orders"), await client.producer("invoices")
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        for steps in range(12):
            await orders.send(b"order")
            order = await consumer.receive(timeout_ms=SOON_MS)
            calls = [
                asyncio.ensure_future(client.transact(invoices.outgoing(b"for it"), consumer.acknowledging(order)))
                for _ in range(2)
            ]
            for _ in range(steps):
                await asyncio.sleep(0)
            calls[1].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    assert reported == []


async def test_what_is_refused(memory: Stores, sqlite: Stores) -> None:
    """Each misuse has one sentence, and nothing is sent."""
    async with memory.open() as client, sqlite.open() as other:
        invoices, stock, consumer = await opened(client)
        with pytest.raises(InvalidInput, match="needs at least one operation"):
            await client.transact()
        used = invoices.outgoing(b"once")
        with pytest.raises(InvalidInput, match="is used already"):
            await client.transact(used, used)
        await client.transact(used)
        with pytest.raises(InvalidInput, match="is used already"):
            await client.transact(stock.outgoing(b"never"), used)
        await other.create_topic("far")
        far = await other.producer("far")
        with pytest.raises(InvalidInput, match="two deployments"):
            await client.transact(stock.outgoing(b"never"), far.outgoing(b"never"))
        with pytest.raises(InvalidInput, match="what producer"):
            await client.transact(b"never")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="at least one message"):
            consumer.acknowledging()
        with pytest.raises(InvalidInput, match="a message, or its id"):
            consumer.acknowledging(b"never")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="bytes or None"):
            invoices.outgoing("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="timeout_ms"):
            await client.transact(stock.outgoing(b"never"), timeout_ms=0)
        late = stock.outgoing(b"never")
        await stock.close()
        with pytest.raises(Closed):
            await client.transact(late)
        with pytest.raises(Closed):
            stock.outgoing(b"never")
        await consumer.close()
        with pytest.raises(Closed):
            consumer.acknowledging(invoices)  # type: ignore[arg-type]
        assert await memory.read(client, "invoices") == [b"once"]
        assert await memory.read(client, "stock") == []


def test_without_await(stores: Stores) -> None:
    """The blocking client has the same call."""
    with stores.open_blocking() as client:
        client.create_topic("orders")
        client.create_topic("invoices")
        with client.producer("orders") as orders, client.producer("invoices") as invoices:
            orders.send(b"order")
            with client.consumer("orders", "billing", start="earliest") as consumer:
                order = consumer.receive(timeout_ms=SOON_MS)
                (sent,) = client.transact(invoices.outgoing(b"invoice"), consumer.acknowledging(order))
                with pytest.raises(ReceiveTimeout):
                    consumer.receive(timeout_ms=1)
            with client.reader("invoices") as reader:
                assert [message.id for message in reader] == [sent]
