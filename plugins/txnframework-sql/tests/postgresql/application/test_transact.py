"""Rows, messages and acknowledgments of ``Client.transact`` take effect by one COMMIT, or not at all."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import asyncpg
import psycopg
import pytest
from application_connections import INSERT, Opened, asked
from one_step import Shop, shop
from sqlalchemy.exc import SQLAlchemyError

import txnframework
from txnframework import Message, PlannedSend
from txnframework.errors import (
    Closed,
    InvalidInput,
    TransactionConflict,
)
from txnframework_sql.testing.servers.databases import fresh_database

PATIENCE_S = 120
DRIVER_ERRORS = (asyncpg.PostgresError, psycopg.Error, SQLAlchemyError)
_numbers = count()


class Billing:
    """A shop whose bills are rows of the table ``mine``."""

    def __init__(self, url: str, opened: Shop) -> None:
        self.url = url
        self.shop = opened

    async def totals(self) -> tuple[int, int, int]:
        """Return how many rows and invoices count, and how many orders are not acknowledged."""
        return (int(await asked(self.url, "SELECT count(*) FROM mine")), *await self.shop.counts())

    async def bill_again(self, connection: Opened, order: Message | None = None) -> None:
        """Require that an order can be billed with the connection; None: one that comes again."""
        before = await self.totals()
        order = order or await self.shop.received()
        await write(connection)
        await self.shop.bill(order, connection.given)
        assert await self.totals() == (before[0] + 1, before[1] + 1, before[2] - 1)


async def write(opened: Opened, *statements: str) -> None:
    """Write a row of the application, in a transaction."""
    if opened.begins:
        await opened.run("BEGIN")
    for statement in statements or (INSERT,):
        await opened.run(statement)


async def roll_back(opened: Opened) -> None:
    """Roll back, as the application would."""
    if opened.begins:
        await opened.run("ROLLBACK")
    else:
        found = opened.given.rollback()
        if inspect.isawaitable(found):
            await found


@pytest.fixture
def options() -> dict[str, Any]:
    """The sections of the configuration that are not the default ones."""
    return {}


@pytest.fixture
async def billing(_url: str, options: dict[str, Any]) -> AsyncIterator[Billing]:
    """A shop of the test's own, without rows."""
    await asked(_url, "TRUNCATE mine CASCADE")
    async with shop(_url, f"{next(_numbers)}", **options) as opened:
        yield Billing(_url, opened)


async def test_everything_is_committed(kind: Any, billing: Billing) -> None:
    """Everything is committed with earlier rows and without rows, as often as the application likes."""
    async with kind(billing.url) as opened:
        for number in range(1, 4):
            order = await billing.shop.order()
            if number < 3:
                await write(opened)
            (sent,) = await billing.shop.bill(order, opened.given)
            assert sent.segment.startswith(f"segment://public/default/invoices-{billing.shop.name}/")
            assert await billing.totals() == (min(number, 2), number, 0)


async def test_a_deferred_constraint(kind: Any, billing: Billing) -> None:
    """The driver's error is raised, nothing took effect, and connection and message can be used again."""
    await asked(billing.url, "DROP TABLE IF EXISTS parts")
    await asked(billing.url, "CREATE TABLE parts (of int REFERENCES mine (id) DEFERRABLE INITIALLY DEFERRED)")
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        await write(opened, INSERT, "INSERT INTO parts VALUES (0)")
        with pytest.raises(DRIVER_ERRORS, match="foreign key"):
            await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (0, 0, 1)
        await billing.bill_again(opened)
    await asked(billing.url, "DROP TABLE parts")


async def outgoing(billing: Billing, what: str) -> PlannedSend:
    """Return a send that cannot be performed."""
    if what == "used":
        used = billing.shop.invoices.outgoing(b"used")
        await billing.shop.client.transact(used)
        return used
    producer = await billing.shop.client.producer(f"invoices-{billing.shop.name}")
    planned = producer.outgoing(b"never")
    await producer.close()
    return planned


@pytest.mark.parametrize("what", ["closed", "used"])
async def test_an_invalid_operation(kind: Any, what: str, billing: Billing) -> None:
    """It is refused before the connection is used: the rows are kept, and a later call can commit them."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        wrong = await outgoing(billing, what)
        _, before, _ = await billing.totals()
        await write(opened)
        acknowledged = billing.shop.todo.acknowledging(order)
        with pytest.raises((InvalidInput, Closed)):
            await billing.shop.client.transact(acknowledged, wrong, commit_with=opened.given)
        assert await billing.totals() == (0, before, 1)
        await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (1, before + 1, 0)


async def test_another_database(kind: Any, billing: Billing) -> None:
    """A connection to a database without the tables is refused in one sentence, and nothing takes effect."""
    with fresh_database() as other:
        await asked(other, "CREATE TABLE mine (id serial PRIMARY KEY, text text NOT NULL)")
        async with kind(other) as opened:
            order = await billing.shop.order()
            for has_rows in (False, True):
                if has_rows:
                    await write(opened)
                with pytest.raises(InvalidInput, match="not connected to the database of the metadata store"):
                    await billing.shop.bill(order, opened.given)
                await roll_back(opened)
                assert await billing.totals() == (0, 0, 1)
            assert await asked(other, "SELECT count(*) FROM mine") == 0
    async with kind(billing.url) as opened:
        await write(opened)
        await billing.shop.bill(order, opened.given)
    assert await billing.totals() == (1, 1, 0)


@pytest.mark.parametrize(
    ("statements", "sentence"),
    [
        (("SET TRANSACTION READ ONLY",), "is read-only"),
        (("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", INSERT), "snapshot"),
        (("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", INSERT), "snapshot"),
        ((INSERT, "SELECT 1 / 0"), "failed before"),
    ],
    ids=["read-only", "repeatable-read", "serializable", "failed"],
)
async def test_a_transaction_that_cannot_carry_a_step(
    kind: Any, statements: tuple[str, ...], sentence: str, billing: Billing
) -> None:
    """It is refused in one sentence, nothing takes effect, and the connection can be used after a rollback."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        if "1 / 0" in statements[-1]:
            await write(opened, *statements[:-1])
            with pytest.raises(DRIVER_ERRORS):
                await opened.run(statements[-1])
        else:
            await write(opened, *statements)
        with pytest.raises(InvalidInput, match=sentence):
            await billing.shop.bill(order, opened.given)
        await roll_back(opened)
        assert await billing.totals() == (0, 0, 1)
        await write(opened)
        await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (1, 1, 0)


async def test_an_open_savepoint(kind: Any, billing: Billing) -> None:
    """An open savepoint that SQLAlchemy knows is refused. A savepoint of another driver is part of the COMMIT."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        if not hasattr(opened.given, "begin_nested"):
            await write(opened, "SAVEPOINT part", INSERT)
            await billing.shop.bill(order, opened.given)
        else:
            await write(opened)
            nested = opened.given.begin_nested()
            nested = await nested if inspect.isawaitable(nested) else nested
            with pytest.raises(InvalidInput, match="open savepoint"):
                await billing.shop.bill(order, opened.given)
            assert await billing.totals() == (0, 0, 1)
            undone = nested.rollback()
            if inspect.isawaitable(undone):
                await undone
            await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (1, 1, 0)


async def test_a_refused_step(kind: Any, billing: Billing) -> None:
    """An acknowledgment that another transaction has pending takes the rows with it, until that one is aborted."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        other = billing.shop.client.transaction()
        await other.begin()
        await billing.shop.todo.ack(order, txn=other)
        await write(opened)
        with pytest.raises(TransactionConflict):
            await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (0, 0, 1)
        await other.abort()
        await billing.bill_again(opened)


async def split_elsewhere(billing: Billing) -> None:
    """Split the segment of the invoices, by another client."""
    stores = {"metadata": {"url": billing.url}, "ledger": {"url": billing.url}}
    async with txnframework.open(stores) as other:
        await other.split(f"invoices-{billing.shop.name}", 0)


async def test_a_sealed_segment(kind: Any, billing: Billing) -> None:
    """A split that the producer has not seen yet takes the rows with it; the next attempt sends to a child."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        await billing.shop.client.transact(billing.shop.invoices.outgoing(b"before"))
        await split_elsewhere(billing)
        await write(opened)
        with pytest.raises(TransactionConflict):
            await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (0, 1, 1)
        await billing.bill_again(opened, order)


@pytest.mark.parametrize("options", [{"ledger": {"options": {"ledger_entries_max": 2}}}])
async def test_a_full_ledger(kind: Any, billing: Billing) -> None:
    """A step that its ledger has no place for takes the rows with it; the next attempt finds a new ledger."""
    async with kind(billing.url) as opened:
        order = await billing.shop.order()
        await billing.shop.client.transact(billing.shop.invoices.outgoing(b"before"))
        await write(opened)
        with pytest.raises(TransactionConflict):
            await billing.shop.bill(order, opened.given)
        assert await billing.totals() == (0, 1, 1)
        await billing.bill_again(opened, order)
