"""``Client.transact(commit_with=...)``: rows of the application and operations that are all known, in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from intercepted_stores import FIRST_APPEND, STEP, Connection, Intercepted
from own_tables import SOON_MS, MemoryTables, Shop, SqliteTables, Tables

import txnframework
from txnframework.errors import (
    Closed,
    InvalidInput,
    OutcomeUnknown,
    TransactionConflict,
    Unavailable,
)
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from conftest import Stores

Meanwhile = Callable[[Shop, txnframework.Client], Awaitable[object]]
"""What another client does just before a step is made."""

NOTHING = (0, 0, 1)
EVERYTHING = (1, 1, 0)
QUICK: dict[str, object] = {"retries_max": 2, "retry_delay_ms": 1, "retry_delay_ms_max": 1}


@pytest.fixture
def tables(memory: Stores) -> Tables:
    """
    The tables of an application beside stores in memory.

    In a file, each write of the client waits for an open row, and each row for a write of the client.
    """
    return MemoryTables(memory)


@pytest.fixture
def calls(tables: Tables) -> Connection:
    """The connection of all clients to the stores."""
    connection = Connection()
    tables.stores.registry = cast(PluginRegistry, Intercepted(tables.stores.registry, connection))
    return connection


async def transact(shop: Shop, consumer: txnframework.Consumer, connection: Any, message: Any) -> tuple[Any, ...]:
    """Insert a row, then send an invoice and acknowledge with it."""
    await shop.tables.insert(connection, message)
    return await shop.client.transact(
        shop.invoices.outgoing(message.value), consumer.acknowledging(message), commit_with=connection
    )


async def test_one_commit_decides_everything(tables: Tables, calls: Connection) -> None:
    """One step has everything, and the connection is free after it; a second one follows on the same connection."""
    async with Shop.open(tables, b"a", b"b") as shop, await shop.consumer() as consumer:
        async with tables.connection() as connection:
            for made in (1, 2):
                message = await consumer.receive(timeout_ms=SOON_MS)
                del calls.names[:]
                (sent,) = await transact(shop, consumer, connection, message)
                assert calls.names.count(STEP) == 1
                assert not {"append", FIRST_APPEND} & {*calls.names}
                assert await shop.client.last_message("invoices") == sent
                assert await shop.counts() == (made, made, 2 - made)
                assert not await tables.of(connection).is_open()
        assert await shop.sent() == [b"a", b"b"]


async def test_operations_without_rows(tables: Tables) -> None:
    """A connection without an open transaction may be given, and no row need be written."""
    async with Shop.open(tables, b"a") as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            await shop.client.transact(consumer.acknowledging(message), commit_with=connection)
            assert not await tables.of(connection).is_open()
            await shop.client.transact(shop.invoices.outgoing(b"a"), commit_with=connection)
        assert await shop.counts() == (0, 1, 0)


async def _split(_: Shop, elsewhere: txnframework.Client) -> None:
    await elsewhere.split("invoices", 0)


async def _seek(_: Shop, elsewhere: txnframework.Client) -> None:
    await elsewhere.seek("orders", "billing", "earliest")


@pytest.mark.parametrize("meanwhile", [_split, _seek], ids=["split", "seek"])
async def test_a_refused_step(tables: Tables, calls: Connection, meanwhile: Meanwhile) -> None:
    """A step that the stores refuse takes the rows back, frees the connection, and can be done again at once."""
    async with Shop.open(tables, b"a") as shop, tables.stores.open() as elsewhere:
        consumer = await shop.consumer("shared")
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            calls.once_before_the_step(lambda: meanwhile(shop, elsewhere))
            with pytest.raises(TransactionConflict, match="do the work again, with its rows"):
                await transact(shop, consumer, connection, message)
            calls.restore()
            assert not await tables.of(connection).is_open()
            assert await shop.counts() == NOTHING
            message = await _received_again(consumer, message)
            await transact(shop, consumer, connection, message)
        assert await shop.counts() == EVERYTHING
        await consumer.close()


async def _received_again(consumer: txnframework.Consumer, message: Any) -> Any:
    await consumer.redeliver_unacknowledged()
    again = await consumer.receive(timeout_ms=SOON_MS)
    assert again.id == message.id
    return again


async def _roll_back(connection: Any) -> None:
    rolled_back = connection.rollback()
    if rolled_back is not None:
        await rolled_back


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "dropped"])
async def test_a_lost_commit(tables: Tables, applied: bool) -> None:
    """After a lost reply the call knows the outcome, and never sends the messages without the rows."""
    async with Shop.open(tables, b"a") as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            await tables.insert(connection, "before")
            await tables.of(connection).lose_commit(applied)
            call = shop.client.transact(
                shop.invoices.outgoing(b"a"), consumer.acknowledging(message), commit_with=connection
            )
            if applied:
                assert await call == (await shop.client.last_message("invoices"),)
            else:
                with pytest.raises(TransactionConflict, match="the reply to its COMMIT was lost"):
                    await call
        assert await shop.counts() == (EVERYTHING if applied else NOTHING)
        if not applied:
            message = await _received_again(consumer, message)
            async with tables.connection() as connection:
                await transact(shop, consumer, connection, message)
        assert await shop.counts() == EVERYTHING


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "dropped"])
async def test_a_lost_commit_in_a_file(sqlite: Stores, applied: bool) -> None:
    """The connection still works after the lost reply, and no message is sent on it without the rows."""
    tables = SqliteTables(sqlite)

    async with Shop.open(tables) as shop, tables.connection() as connection:
        # What is opened here cannot be opened once a row waits for its COMMIT.
        await shop.client.transact(shop.invoices.outgoing(b"warm"))
        await shop.client.maintain()
        await tables.insert(connection, "a")
        await tables.of(connection).lose_commit(applied)
        call = shop.client.transact(shop.invoices.outgoing(b"a"), commit_with=connection)
        if applied:
            await call
        else:
            with pytest.raises(TransactionConflict, match="the reply to its COMMIT was lost"):
                await call
        assert not await tables.of(connection).is_open()
        assert await tables.committed() == ({"a"} if applied else set())
        assert await shop.sent() == [b"warm", *([b"a"] if applied else [])]


async def test_a_lost_commit_that_arrives_late(memory: Stores) -> None:
    """A COMMIT that is still on its way is waited for; then everything counts."""
    tables = MemoryTables(memory)
    async with Shop.open(tables, b"a") as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            connection.lose_commit("late")
            call = asyncio.ensure_future(transact(shop, consumer, connection, message))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not call.done()
            assert await tables.committed() == set()
            connection.deliver()
            assert await call == (await shop.client.last_message("invoices"),)
        assert await shop.counts() == EVERYTHING


async def test_the_outcome_cannot_be_found_out(tables: Tables, calls: Connection) -> None:
    """If the header cannot be read after a lost reply, OutcomeUnknown is raised, and the connection is free."""
    async with Shop.open(tables, b"a", client=QUICK) as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:

            async def cut(_: str) -> None:
                calls.is_cut = True

            async def after(name: str) -> None:
                if name == STEP:
                    calls.before = cut

            calls.after = after
            await tables.of(connection).lose_commit(True)
            with pytest.raises(OutcomeUnknown):
                await transact(shop, consumer, connection, message)
            calls.restore()
        assert await shop.counts() == EVERYTHING


async def test_an_error_of_the_database_at_the_commit(tables: Tables) -> None:
    """It is raised unchanged, nothing counts, and the message can be handled again."""
    async with Shop.open(tables, b"a") as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            rows = tables.of(connection)
            await rows.refuse_commit()
            with pytest.raises(rows.refusal):
                await transact(shop, consumer, connection, message)
            assert not await rows.is_open()
            assert await shop.counts() == NOTHING
            message = await _received_again(consumer, message)
            await transact(shop, consumer, connection, message)
        assert await shop.counts() == EVERYTHING


async def test_a_connection_in_use(tables: Tables) -> None:
    """A connection belongs to one open transaction at a time, in one step or in several; afterwards it is free."""
    async with Shop.open(tables, b"a") as shop, tables.connection() as connection:
        async with shop.client.transaction(commit_with=connection):
            with pytest.raises(InvalidInput, match="belongs to another open transaction"):
                await shop.client.transact(shop.invoices.outgoing(b"a"), commit_with=connection)
        first = asyncio.ensure_future(shop.client.transact(shop.invoices.outgoing(b"b"), commit_with=connection))
        await asyncio.sleep(0)
        with pytest.raises(InvalidInput, match="belongs to another open transaction"):
            await shop.client.transact(shop.invoices.outgoing(b"c"), commit_with=connection)
        await first
        assert await shop.sent() == [b"b"]


async def test_connections_that_cannot_be_joined(tables: Tables) -> None:
    """An object of another kind, operations of no common family and a closed client are refused before anything."""
    async with Shop.open(tables, b"a") as shop, tables.connection() as connection:
        with pytest.raises(InvalidInput, match="commit_with"):
            await shop.client.transact(shop.invoices.outgoing(b"a"), commit_with=object())
        with pytest.raises(InvalidInput):
            await shop.client.transact(commit_with=connection)
        await tables.insert(connection, "own")
        assert await shop.sent() == []
        planned = shop.invoices.outgoing(b"a")
    with pytest.raises(Closed):
        await shop.client.transact(planned, commit_with=connection)


async def test_a_sequence_id_of_the_application(tables: Tables) -> None:
    """Such a message needs the usual steps, and the rows take effect with them."""
    async with (
        Shop.open(tables) as shop,
        await shop.client.producer("invoices", name="till") as till,
        tables.connection() as connection,
    ):
        for _ in range(2):
            await tables.insert(connection, "own")
            await shop.client.transact(till.outgoing(b"one", sequence_id=1), commit_with=connection)
            assert not await tables.of(connection).is_open()
        assert (await shop.sent(), await tables.committed()) == ([b"one"], {"own"})


async def test_a_sequence_id_of_the_application_in_a_file(sqlite: Stores) -> None:
    """The usual steps would wait for the row, so the call says that they cannot be made."""
    tables = SqliteTables(sqlite)

    async with (
        Shop.open(tables) as shop,
        await shop.client.producer("invoices", name="till") as till,
        tables.connection() as connection,
    ):
        await tables.insert(connection, "own")
        with pytest.raises(InvalidInput, match=r"sequence id of your choice.*SQLite has one writer"):
            await shop.client.transact(till.outgoing(b"one", sequence_id=1), commit_with=connection)
        assert not await tables.of(connection).is_open()
        assert (await shop.sent(), await tables.committed()) == ([], set())


async def test_the_connection_is_lost_before_the_step(tables: Tables, calls: Connection) -> None:
    """If the rows are gone before the step, the call fails: no messages are sent on a new transaction."""
    async with Shop.open(tables, b"a", client=QUICK) as shop, await shop.consumer() as consumer:
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with tables.connection() as connection:
            calls.once_before_the_step(lambda: _roll_back(connection))
            with pytest.raises((InvalidInput, Unavailable)):
                await transact(shop, consumer, connection, message)
        assert await shop.counts() == NOTHING


async def test_cancelled_at_every_step(tables: Tables) -> None:
    """A cancelled call has committed everything or nothing, and the connection is free when it raises."""

    async def once(shop: Shop, steps: int) -> bool:
        async with tables.connection() as connection:
            before = await tables.committed(), await shop.sent()
            await tables.insert(connection, f"{steps}")
            call = asyncio.ensure_future(
                shop.client.transact(shop.invoices.outgoing(b"%d" % steps), commit_with=connection)
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            if await tables.of(connection).is_open():  # it was not joined yet
                assert call.cancelled()
                await _roll_back(connection)
            rows, sent = await tables.committed() - before[0], [*await shop.sent()][len(before[1]) :]
            assert (len(rows), len(sent)) in {(0, 0), (1, 1)}
            if not call.cancelled():
                assert len(rows) == 1
            async with asyncio.timeout(60):
                await shop.client.transact(shop.invoices.outgoing(b"next"), commit_with=connection)
            return not call.cancelled()

    steps = 0
    async with Shop.open(tables) as shop:
        while not await once(shop, steps):
            steps += 1


@pytest.mark.log_family
async def test_the_log_family(stores: Stores, in_memory: None) -> None:
    """Its transactions cannot commit with rows, which the call says before anything happens."""
    tables, topic = MemoryTables(stores), "persistent://public/default/invoices"
    async with stores.open() as client, tables.connection() as connection:
        await client.create_topic(topic)
        async with await client.producer(topic) as producer:
            await tables.insert(connection, "own")
            with pytest.raises(InvalidInput, match="commit_with needs transactions of the metadata family"):
                await client.transact(producer.outgoing(b"a"), commit_with=connection)
            assert await tables.of(connection).is_open()
