"""Rows of the application, messages and acknowledgments that commit together, over the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest

import txnframework
from txnframework import Client, Consumer, Producer
from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    OutcomeUnknown,
    ReceiveTimeout,
    TransactionConflict,
    TransactionHasFailedOperations,
)
from txnframework.model import State
from txnframework_memory import MemoryConnection, connect

TOPIC = "topic://public/default/orders"
OUTPUT = "topic://public/default/invoices"
BILLING = "billing"

_names = count()


class Shop:
    """A client with one input message and an output topic, and connections to its rows."""

    def __init__(self, client: Client, url: str, input_: Producer, producer: Producer, consumer: Consumer) -> None:
        self.client = client
        self.url = url
        self.input = input_
        self.producer = producer
        self.consumer = consumer

    def connect(self) -> MemoryConnection:
        """Return a new connection to the application's tables."""
        return connect(self.url)

    async def rows(self) -> dict[str, bytes]:
        """Return the committed rows."""
        return await self.connect().scan("invoices")

    async def messages(self) -> int:
        """Return how many messages of the output are committed."""
        async with await self.client.reader(OUTPUT) as reader:
            return len([message async for message in reader])

    async def totals(self) -> tuple[int, int, int]:
        """Return how many rows and output messages count, and how many input messages are not acknowledged."""
        await self.client.maintain()
        return len(await self.rows()), await self.messages(), len(await self.client.peek(TOPIC, BILLING, 1000))

    async def counts(self) -> tuple[int, int, int]:
        """Return how many rows, output messages and acknowledgments of one input message count."""
        rows, messages, left = await self.totals()
        return rows, messages, 1 - left

    async def block(
        self, connection: MemoryConnection, then: Callable[[txnframework.Transaction], Awaitable[object]]
    ) -> None:
        """Do the work in one transaction, and then ``then``."""
        self.txn = self.client.transaction(commit_with=connection)
        async with self.txn as txn:
            await self.work(txn, connection)
            await then(txn)

    async def work(self, txn: txnframework.Transaction, connection: MemoryConnection) -> None:
        """Receive the input, write a row, send the output and acknowledge the input."""
        message = await self.consumer.receive(timeout_ms=60_000)
        await connection.put("invoices", "1", message.value)
        await self.producer.send(b"invoice", txn=txn)
        await self.consumer.ack(message, txn=txn)


@asynccontextmanager
async def open_shop() -> AsyncIterator[Shop]:
    """Open a client over a new space."""
    url = f"memory://own-rows-{next(_names)}"
    # What a cancelled block leaves, the next maintenance settles, and does not wait for this process to do so.
    settling = {"coordinators": {"metadata": {"settle_delay_ms": 0}}}
    config: Mapping[str, object] = {"metadata": {"url": url}, "ledger": {"url": url}, **settling}
    async with txnframework.open(config) as client:
        await client.create_topic(TOPIC)
        await client.create_topic(OUTPUT)
        await client.subscribe(TOPIC, BILLING, start="earliest")
        async with (
            await client.producer(TOPIC) as input_,
            await client.producer(OUTPUT) as producer,
            await client.consumer(TOPIC, BILLING) as consumer,
        ):
            await input_.send(b"order")
            yield Shop(client, url, input_, producer, consumer)


async def nothing(_: object) -> None:
    """Leave the block."""


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop() as shop:
        yield shop


async def test_one_commit_decides_everything(shop: Shop) -> None:
    """Rows, messages and acknowledgments appear together; the connection is free afterwards."""
    connection = shop.connect()
    async with shop.client.transaction(commit_with=connection) as txn:
        await shop.work(txn, connection)
        assert await shop.rows() == {}
        assert await shop.messages() == 0
    assert txn.state is State.COMMITTED
    assert connection.open is None
    assert await shop.counts() == (1, 1, 1)
    async with shop.client.transaction(commit_with=connection) as again:
        await connection.put("invoices", "2", b"")
    assert again.state is State.COMMITTED
    assert len(await shop.rows()) == 2


async def test_an_exception_rolls_everything_back(shop: Shop) -> None:
    """Nothing of the block is committed, and its exception is raised."""
    connection = shop.connect()

    async def fail(_: object) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await shop.block(connection, fail)
    assert shop.txn.state is State.ABORTED
    assert connection.open is None
    assert await shop.counts() == (0, 0, 0)


async def test_a_caught_cancellation_rolls_everything_back(shop: Shop) -> None:
    """A block that catches the cancellation of its task and ends is not committed, because it may be incomplete."""
    connection, worked = shop.connect(), asyncio.Event()

    async def catch(_: object) -> None:
        worked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(shop.block(connection, catch))
    await worked.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert shop.txn.state is State.ABORTED
    assert connection.open is None
    assert await shop.counts() == (0, 0, 0)


async def test_an_open_transaction_is_joined(shop: Shop) -> None:
    """What the application wrote before the block commits with it."""
    connection = shop.connect()
    await connection.put("invoices", "before", b"")
    async with shop.client.transaction(commit_with=connection) as txn:
        await shop.work(txn, connection)
    assert sorted(await shop.rows()) == ["1", "before"]


async def test_a_commit_within_the_block(shop: Shop) -> None:
    """A commit within the block is refused, because later rows would be lost without an error.

    The block can continue.
    """
    connection = shop.connect()
    async with shop.client.transaction(commit_with=connection) as txn:
        await shop.work(txn, connection)
        with pytest.raises(InvalidInput, match="remove the call of commit"):
            await txn.commit()
        await connection.put("invoices", "2", b"")
    await txn.commit()
    assert await shop.totals() == (2, 1, 0)


async def test_a_failed_send_rolls_the_rows_back(shop: Shop) -> None:
    """A poisoned transaction is aborted, with its rows."""
    connection = shop.connect()

    async def fail(txn: txnframework.Transaction) -> None:
        with pytest.raises(ZeroDivisionError), txn.operation():
            raise ZeroDivisionError

    with pytest.raises(TransactionHasFailedOperations):
        await shop.block(connection, fail)
    assert await shop.counts() == (0, 0, 0)


async def test_an_error_of_the_database_at_the_commit(shop: Shop) -> None:
    """It is raised as the driver raised it, and the transaction is aborted."""

    class Violation(Exception):
        pass

    def refuse(_: object) -> None:
        raise Violation

    connection = shop.connect()
    connection.database.constraints.append(refuse)
    with pytest.raises(Violation) as caught:
        await shop.block(connection, nothing)
    connection.database.constraints.clear()
    assert not hasattr(caught.value, "__notes__")
    assert shop.txn.state is State.ABORTED
    assert await shop.client.outcome(shop.txn.id) is State.ABORTED
    assert await shop.counts() == (0, 0, 0)


async def test_the_reply_to_the_commit_is_lost() -> None:
    """The client finds out the outcome, and everything agrees with it; the COMMIT is not repeated."""

    async def applied(shop: Shop) -> None:
        connection = shop.connect()
        async with shop.client.transaction(commit_with=connection) as txn:
            await shop.work(txn, connection)
            connection.lose_commit("applied")
        assert txn.state is State.COMMITTED
        assert await shop.counts() == (1, 1, 1)

    async def dropped(shop: Shop) -> None:
        connection = shop.connect()
        connection.lose_commit("dropped")
        with pytest.raises(InvalidTransactionState, match="rolled back") as caught:
            await shop.block(connection, nothing)
        assert caught.value.actual is shop.txn.state is State.ABORTED
        assert await shop.counts() == (0, 0, 0)

    async def late(shop: Shop) -> None:
        connection = shop.connect()
        async with shop.client.transaction(commit_with=connection) as txn:
            await shop.work(txn, connection)
            connection.lose_commit("late")
            asyncio.get_running_loop().call_later(0.05, connection.deliver)
        assert txn.state is State.COMMITTED
        assert await shop.counts() == (1, 1, 1)

    for test in (applied, dropped, late):
        async with open_shop() as shop:
            await test(shop)


async def test_another_process_ends_it_first(shop: Shop) -> None:
    """An abort by its id wins as long as the COMMIT was not sent; the rows are rolled back."""
    connection = shop.connect()
    with pytest.raises(InvalidTransactionState) as caught:
        await shop.block(connection, lambda txn: shop.client.abort(txn.id))
    assert caught.value.actual is shop.txn.state is State.ABORTED
    assert await shop.counts() == (0, 0, 0)


async def test_another_process_cannot_commit_it(shop: Shop) -> None:
    """Its messages would appear without its rows."""
    connection = shop.connect()
    async with shop.client.transaction(commit_with=connection) as txn:
        await shop.work(txn, connection)
        for operator in (False, True):
            with pytest.raises(TransactionConflict, match="together with the rows"):
                await shop.client.commit(txn.id, operator=operator)
        assert await shop.client.outcome(txn.id) is State.OPEN
    await shop.client.commit(txn.id)  # it is committed: the same request again succeeds
    assert await shop.counts() == (1, 1, 1)


async def test_a_connection_belongs_to_one_transaction_at_a_time(shop: Shop) -> None:
    """The second transaction is refused, and the first one is not disturbed."""
    connection = shop.connect()
    async with shop.client.transaction(commit_with=connection) as txn:
        with pytest.raises(InvalidInput, match="another open transaction"):
            async with shop.client.transaction(commit_with=connection):
                raise AssertionError
        with pytest.raises(InvalidInput, match="another open transaction"):
            await txn.begin()
        await shop.work(txn, connection)
    assert await shop.counts() == (1, 1, 1)


async def test_connections_that_cannot_be_joined(shop: Shop) -> None:
    """One sentence says why, nothing stays open, and the next transaction works."""
    async with open_shop() as other:
        for wrong in (object(), other.connect()):
            transaction = shop.client.transaction(commit_with=wrong)
            with pytest.raises(InvalidInput, match="commit_with takes a"):
                await transaction.begin()
            assert await shop.client.outcome(transaction.id) is State.ABORTED


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_the_application_ends_its_transaction_in_the_block(ending: str, shop: Shop) -> None:
    """The block raises an error, and the messages and acknowledgments have no effect."""
    connection = shop.connect()
    with pytest.raises(InvalidInput, match="has ended the transaction"):
        await shop.block(connection, lambda _: getattr(connection, ending)())
    assert shop.txn.state is State.ABORTED
    assert (await shop.counts())[1:] == (0, 0)


async def test_cancelled_at_every_step(shop: Shop) -> None:
    """A block that is cancelled at any step has committed everything or nothing, and the connection is free."""

    async def cancelled(shop: Shop, steps: int) -> bool:
        """Cancel a block after so many steps; return whether it was not cancelled before its end."""
        before = await shop.totals()
        connection = shop.connect()
        ids: list[txnframework.TxnID] = []

        async def block(consumer: Consumer) -> None:
            async with shop.client.transaction(commit_with=connection) as txn:
                ids.append(txn.id)
                await connection.put("invoices", str(steps), b"")
                await shop.producer.send(b"invoice", txn=txn)
                await consumer.ack(message, txn=txn)

        async with await shop.client.consumer(TOPIC, BILLING) as consumer:
            await shop.input.send(b"order")
            message = await consumer.receive(timeout_ms=60_000)
            task = asyncio.ensure_future(block(consumer))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            # Before anything else runs: the block has left the connection.
            assert connection.open is None
            shop.client.host.connections.take(connection)  # it belongs to no transaction any more
            state = await shop.client.outcome(ids[0]) if ids else State.ABORTED
        assert state in (State.COMMITTED, State.ABORTED)
        counted = int(state is State.COMMITTED)
        rows, messages, left = await shop.totals()
        assert (rows, messages, left) == (before[0] + counted, before[1] + counted, before[2] + 1 - counted)
        return not isinstance(ended, asyncio.CancelledError)

    await shop.consumer.close()
    steps = 0
    while not await cancelled(shop, steps):
        steps += 1
    assert steps > 30


def test_the_client_closes_within_the_block() -> None:
    """The rows are rolled back when the block is left."""

    async def main() -> None:
        connections: list[MemoryConnection] = []

        async def closing() -> None:
            async with open_shop() as opened:
                connections.append(opened.connect())
                await opened.block(connections[0], lambda _: opened.client.host.close())

        with pytest.raises(Closed):
            await closing()
        assert connections[0].open is None
        assert await connections[0].database.connect().scan("invoices") == {}

    asyncio.run(asyncio.wait_for(main(), 60))


async def test_the_store_cannot_be_reached_after_a_lost_reply(shop: Shop) -> None:
    """The outcome is unknown, and ``outcome`` returns it later; committing again finds out and never commits twice."""
    for fate, state in (("applied", State.COMMITTED), ("dropped", State.ABORTED)):
        connection = shop.connect()
        transaction = shop.client.transaction(commit_with=connection)
        await transaction.begin()
        await connection.put("invoices", fate, b"")
        await shop.producer.send(b"invoice", txn=transaction)
        connection.lose_commit(fate)  # type: ignore[arg-type]
        store = shop.client.host.metadata
        store.cut()
        with pytest.raises(OutcomeUnknown):
            await transaction.commit()
        store.restore()
        if state is State.COMMITTED:
            await transaction.commit()
        else:
            with pytest.raises(InvalidTransactionState, match="rolled back"):
                await transaction.commit()
        assert await shop.client.outcome(transaction.id) is transaction.state is state
    assert sorted(await shop.rows()) == ["applied"]
    await shop.client.maintain()
    assert await shop.messages() == 1


async def test_nothing_is_received_before_the_commit(shop: Shop) -> None:
    """Another consumer waits for the messages until the COMMIT."""
    connection = shop.connect()
    async with await shop.client.consumer(OUTPUT, "copy", start="earliest") as consumer:
        async with shop.client.transaction(commit_with=connection) as txn:
            await shop.work(txn, connection)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=20)
        assert (await consumer.receive(timeout_ms=60_000)).value == b"invoice"
