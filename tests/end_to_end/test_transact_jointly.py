"""``Client.transact`` in one step of the store: what it writes, and what goes wrong before, in and after the step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from intercepted_stores import FIRST_APPEND, STEP, Connection, Intercepted, steps_for

from txnframework import Client, Consumer, Message, Producer
from txnframework.errors import Closed, OutcomeUnknown, ReceiveTimeout, Unavailable
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model import TopicName
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.metadata_family, pytest.mark.one_server]

SOON_MS = 60_000
QUICK: dict[str, object] = {"retries_max": 2, "retry_delay_ms": 1, "retry_delay_ms_max": 1}
READS = ("tail", "read")


@pytest.fixture
def connection(stores: Stores) -> Connection:
    """The connection of all clients to the stores."""
    connection = Connection()
    stores.registry = cast(PluginRegistry, Intercepted(stores.registry, connection))
    return connection


async def opened(client: Client, *orders: bytes) -> tuple[Producer, Producer, Consumer, list[Message]]:
    """Create three topics; return producers of two, and a consumer of the third with its messages."""
    for topic in ("orders", "invoices", "stock"):
        await client.create_topic(topic)
    consumer = await client.consumer("orders", "billing", start="earliest")
    async with await client.producer("orders") as producer:
        for one in orders:
            await producer.send(one)
    received = [await consumer.receive(timeout_ms=SOON_MS) for _ in orders]
    return await client.producer("invoices"), await client.producer("stock"), consumer, received


async def left_in(client: Client, consumer: Consumer) -> list[bytes]:
    """Return what a subscription delivers again, to its consumer and then to another one."""
    await consumer.redeliver_unacknowledged()
    found = await _received(consumer)
    await consumer.close()
    async with await client.consumer("orders", "billing") as again:
        assert await _received(again) == found
    return found


async def _received(consumer: Consumer) -> list[bytes]:
    found: list[bytes] = []
    while True:
        try:
            found.append((await consumer.receive(timeout_ms=50)).value or b"")
        except ReceiveTimeout:
            return found


async def test_one_step_is_everything(stores: Stores, connection: Connection) -> None:
    """Messages of several segments, and acknowledgments where writes are serial, are one write and nothing else."""
    async with stores.open() as client:
        invoices, stock, consumer, orders = await opened(client, b"a", b"b", b"c")
        for order in orders[:2]:
            for acks in (False, True):
                del connection.names[:]
                operations = [consumer.acknowledging(order)] if acks else []
                await client.transact(invoices.outgoing(b"i"), stock.outgoing(b"s"), *operations)
                made = await steps_for(client)
                assert connection.names.count(STEP) == made
                usual = {"append", FIRST_APPEND} & {*connection.names}
                assert bool(usual) != bool(made)
        assert await stores.read(client, "invoices") == [b"i"] * 4
        assert await left_in(client, consumer) == [b"c"]


async def test_a_step_that_is_refused(stores: Stores, connection: Connection) -> None:
    """A store that cannot make the step has stored nothing, and the usual steps follow."""
    async with stores.open() as client:
        invoices, _, consumer, (first, _) = await opened(client, b"a", b"b")

        async def refuse() -> None:
            raise Unavailable("refused by the test")

        connection.once_before_the_step(refuse)
        (sent,) = await client.transact(invoices.outgoing(b"once"), consumer.acknowledging(first))
        connection.restore()
        assert await client.last_message("invoices") == sent
        assert await stores.read(client, "invoices") == [b"once"]
        assert await left_in(client, consumer) == [b"b"]


async def test_a_lost_reply(stores: Stores, connection: Connection) -> None:
    """The call returns the ids of what is stored, and its messages stay acknowledged."""
    async with stores.open(client=QUICK) as client:
        invoices, stock, consumer, (first, _) = await opened(client, b"a", b"b")
        await invoices.send(b"before")
        connection.lose_the_step(READS, times=1)
        sent = await client.transact(
            invoices.outgoing(b"1"), stock.outgoing(b"2"), invoices.outgoing(b"3"), consumer.acknowledging(first)
        )
        connection.restore()
        for topic, values in (("invoices", [b"before", b"1", b"3"]), ("stock", [b"2"])):
            async with await client.reader(topic) as reader:
                stored = [message async for message in reader]
            assert [message.value for message in stored] == values
            assert {message.id for message in stored if message.value != b"before"} <= {*sent}
        assert await left_in(client, consumer) == [b"b"]


async def test_what_was_written_cannot_be_read(stores: Stores, connection: Connection) -> None:
    """After a lost reply, a committed transaction is never made a second time: without ids its outcome is unknown."""
    async with stores.open(client=QUICK) as client:
        invoices, _, _, _ = await opened(client)
        await client.transact(invoices.outgoing(b"before"))
        connection.lose_the_step(READS, times=100)
        call = client.transact(invoices.outgoing(b"once"))
        if await steps_for(client):
            with pytest.raises(OutcomeUnknown, match="is committed"):
                await call
        else:
            await call
        connection.restore()
        assert await stores.read(client, "invoices") == [b"before", b"once"]
        await invoices.close()


async def test_an_acknowledgment_of_another_transaction(stores: Stores, connection: Connection) -> None:
    """Another transaction that holds another message of the subscription makes the step impossible, not the call."""
    async with stores.open() as client:
        invoices, _, consumer, (first, second) = await opened(client, b"a", b"b")

        async def hold() -> None:
            await holder.begin()
            await consumer.ack(second, txn=holder)

        holder = client.transaction()
        made = await steps_for(client)
        if made:
            connection.once_before_the_step(hold)
        else:
            await hold()
        await client.transact(invoices.outgoing(b"once"), consumer.acknowledging(first))
        await holder.abort()
        assert await stores.read(client, "invoices") == [b"once"]
        assert await left_in(client, consumer) == [b"b"]


async def test_a_split_just_before_the_step(stores: Stores, connection: Connection) -> None:
    """A segment that is sealed after the messages were routed refuses the step; they go to its children, once."""
    async with stores.open() as client, stores.open() as elsewhere:
        invoices, stock, consumer, (first, _) = await opened(client, b"a", b"b")
        if await steps_for(client):
            connection.once_before_the_step(lambda: elsewhere.split("invoices", 0))
        else:
            await elsewhere.split("invoices", 0)
        sent, _ = await client.transact(
            invoices.outgoing(b"after", key=b"k"), stock.outgoing(b"s"), consumer.acknowledging(first)
        )
        connection.restore()
        assert len((await client.topics.layout(TopicName.parse("invoices"))).active()) == 2
        assert await client.last_message("invoices") == sent
        assert await stores.read(client, "invoices") == [b"after"]
        assert await stores.read(client, "stock") == [b"s"]
        assert await left_in(client, consumer) == [b"b"]


async def test_closing_a_producer_waits_for_the_step(stores: Stores, connection: Connection) -> None:
    """When ``close`` returns, no message of the producer is on its way any more."""
    async with stores.open() as client:
        invoices, _, _, _ = await opened(client)
        reached, go = asyncio.Event(), asyncio.Event()

        async def before(name: str) -> None:
            if name in (STEP, "append", FIRST_APPEND):
                reached.set()
                await go.wait()

        connection.before = before
        call = asyncio.ensure_future(client.transact(invoices.outgoing(b"once")))
        await reached.wait()
        closing = asyncio.ensure_future(invoices.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        go.set()
        await asyncio.gather(call, closing)
        assert await stores.read(client, "invoices") == [b"once"]


async def test_closing_a_producer_waits_for_a_step_whose_caller_was_cancelled(
    stores: Stores, connection: Connection
) -> None:
    """When ``close`` returns, no message of the producer is stored any more, also after a cancelled call."""
    async with stores.open() as client:
        invoices, _, _, _ = await opened(client)
        if not await steps_for(client):
            return
        reached, go = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await go.wait()

        connection.once_before_the_step(hold)
        call = asyncio.ensure_future(client.transact(invoices.outgoing(b"once")))
        await reached.wait()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        closing = asyncio.ensure_future(invoices.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        go.set()
        await closing
        assert await stores.read(client, "invoices") == [b"once"]


async def test_an_acknowledgment_outside_of_transactions_before_the_step(
    stores: Stores, connection: Connection
) -> None:
    """The process knows the cursor that it has moved itself: the next step is not refused."""
    async with stores.open() as client:
        invoices, _, consumer, orders = await opened(client, b"a", b"b", b"c", b"d")
        for plain, planned in ((orders[0], orders[1]), (orders[2], orders[3])):
            await consumer.ack(plain)
            del connection.names[:]
            await client.transact(invoices.outgoing(b"i"), consumer.acknowledging(planned))
            made = await steps_for(client)
            assert connection.names.count(STEP) == made
            assert bool({"append", FIRST_APPEND} & {*connection.names}) != bool(made)
        assert await left_in(client, consumer) == []


async def test_messages_of_one_producer_go_together(stores: Stores, connection: Connection) -> None:
    """In one step and in the usual steps, they share an entry, in their order."""
    async with stores.open() as client:
        invoices, _, _, _ = await opened(client)

        async def refuse() -> None:
            raise Unavailable("refused by the test")

        for refused in (False, True):
            if refused:
                connection.once_before_the_step(refuse)
            sent = await client.transact(*(invoices.outgoing(b"%d" % number, key=b"k") for number in range(3)))
            connection.restore()
            assert len({(one.segment, one.position.ledger_id, one.position.entry_id) for one in sent}) == 1
            assert [one.position.batch_index for one in sent] == [0, 1, 2]
        await invoices.close()


async def test_a_producer_that_is_closed_before_the_step(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was about to begin when its producer was closed sends nothing."""
    async with stores.open() as client:
        if not await steps_for(client):
            return
        await client.create_topic("invoices")
        invoices = await client.producer("invoices")
        reached, go = asyncio.Event(), asyncio.Event()

        find = client.host.coordinator

        async def find_later(*place: str) -> ITransactionCoordinator:
            reached.set()
            await go.wait()
            return await find(*place)

        monkeypatch.setattr(client.host, "coordinator", find_later)
        call = asyncio.ensure_future(client.transact(invoices.outgoing(b"never")))
        await reached.wait()
        await invoices.close()
        go.set()
        with pytest.raises(Closed):
            await call
        assert await stores.read(client, "invoices") == []


async def test_more_messages_than_may_be_in_flight(stores: Stores) -> None:
    """Such a call takes the usual steps, and calls of two producers never deadlock."""
    async with stores.open(client={"sends_in_flight_max": 2}) as client:
        invoices, stock, _, _ = await opened(client)
        await client.transact(*(invoices.outgoing(b"many") for _ in range(5)))
        one, other = (invoices, stock), (stock, invoices)
        calls = [
            client.transact(*(producer.outgoing(b"%d" % number) for producer in (one if number % 2 else other) * 2))
            for number in range(6)
        ]
        await asyncio.gather(*calls, *(invoices.send(b"plain") for _ in range(6)))
        twice = sorted([b"%d" % number for number in range(6)] * 2)
        assert sorted(await stores.read(client, "stock")) == twice
        assert sorted(await stores.read(client, "invoices")) == sorted([*twice, *[b"many"] * 5, *[b"plain"] * 6])


async def test_a_snapshot_meanwhile(stores: Stores, connection: Connection) -> None:
    """Wherever a step falls while a snapshot is taken, the snapshot has all of it or nothing."""
    async with stores.open() as client, stores.open() as other:
        invoices, stock, _, _ = await opened(client)

        async def both(value: bytes) -> None:
            await client.transact(invoices.outgoing(value), stock.outgoing(value))

        async def snapshot_with(at: int) -> list[list[bytes | None]]:
            calls = 0

            async def before(_: str) -> None:
                nonlocal calls
                if asyncio.current_task() is taking:
                    calls += 1
                    if calls == at:
                        await asyncio.create_task(both(b"%d" % at))

            taking = asyncio.create_task(other.snapshot("invoices", "stock"))
            connection.before = before
            snapshot = await taking
            connection.restore()
            return [[one.value async for one in await snapshot.reader(topic)] for topic in ("invoices", "stock")]

        for at in range(8):
            left, right = await snapshot_with(at)
            assert left == right


async def test_a_waiting_reader_wakes(stores: Stores) -> None:
    """A following reader is notified at once, in another client and in the same one."""
    async with stores.open() as client, stores.open() as other:
        invoices, _, _, _ = await opened(client)
        for number in range(2):
            following = [await one.reader("invoices", start="latest", follow=True) for one in (client, other)]
            waiting = [asyncio.ensure_future(anext(aiter(reader))) for reader in following]
            await asyncio.sleep(0.01)
            (sent,) = await client.transact(invoices.outgoing(b"%d" % number))
            assert [message.id for message in await asyncio.gather(*waiting)] == [sent, sent]
            for reader in following:
                await reader.close()
