"""Blocks of real clients on a SQLite file, with and without asyncio."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import txnframework
import txnframework.blocking
from txnframework.errors import InvalidInput, ReceiveTimeout

PATIENCE_S = 120


class Base(DeclarativeBase):
    """The application's tables."""


class Billed(Base):
    """An order that was billed."""

    __tablename__ = "billed"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


def config_of(directory: Path) -> dict[str, dict[str, object]]:
    """Return the configuration of a client in a directory."""
    url = f"sqlite:///{directory / 'txn.db'}"
    return {"metadata": {"url": url}, "ledger": {"url": url}}


def test_a_blocking_client(tmp_path: Path) -> None:
    """Connections that belong to a thread are used in that thread, whatever the thread of the loop is."""
    with txnframework.blocking.open(config_of(tmp_path)) as client:
        client.create_topic("orders")
        client.create_topic("invoices")
        engine = create_engine(f"sqlite:///{tmp_path / 'txn.db'}")
        Base.metadata.create_all(engine)
        raw = sqlite3.connect(tmp_path / "txn.db")
        with (
            client.producer("orders") as orders,
            client.producer("invoices") as invoices,
            client.consumer("orders", "billing", start="earliest") as todo,
        ):
            orders.send_many([b"1", b"2"])
            order = todo.receive(timeout_ms=60_000)
            with client.transaction(commit_with=raw) as txn:
                invoices.send(order.value, txn=txn)
                todo.ack(order, txn=txn)
                raw.execute("INSERT INTO billed (what) VALUES ('1')")
            order = todo.receive(timeout_ms=60_000)
            # A session writes its objects at the end of the block, so the order in the block does not matter.
            with Session(engine) as session, client.transaction(commit_with=session) as txn:
                session.add(Billed(what="2"))
                invoices.send(order.value, txn=txn)
                todo.ack(order, txn=txn)
            assert raw.execute("SELECT what FROM billed ORDER BY what").fetchall() == [("1",), ("2",)]
            with pytest.raises(ReceiveTimeout):
                todo.receive(timeout_ms=100)
        with client.reader("invoices") as reader:
            assert sorted(message.value for message in reader) == [b"1", b"2"]
        raw.close()
        engine.dispose()


async def test_an_error_in_the_block(tmp_path: Path) -> None:
    """The rows are rolled back, and the order is redelivered. A send after the row was refused at once."""
    pytest.importorskip("aiosqlite")
    config = config_of(tmp_path)
    # What waits for the lock of the application's transaction, waits longer than the test may take.
    patient = {store: {**section, "options": {"lock_timeout_ms": 3_600_000}} for store, section in config.items()}

    async with asyncio.timeout(PATIENCE_S), txnframework.open(patient) as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'txn.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with (
            await client.producer("orders") as orders,
            await client.producer("invoices") as invoices,
            await client.consumer("orders", "billing", start="earliest") as todo,
            AsyncSession(engine) as session,
        ):
            await orders.send(b"1")
            order = await todo.receive(timeout_ms=60_000)

            async def send_too_late() -> None:
                async with client.transaction(commit_with=session) as txn:
                    await todo.ack(order, txn=txn)
                    await session.execute(text("INSERT INTO billed (what) VALUES ('1')"))
                    await invoices.send(b"1", txn=txn)

            with pytest.raises(InvalidInput, match="before the first own row"):
                await send_too_late()
            again = await todo.receive(timeout_ms=60_000)
            assert (again.id, again.redelivery_count) == (order.id, 1)
            async with client.transaction(commit_with=session) as txn:
                session.add(Billed(what="1"))
                await invoices.send(b"1", txn=txn)
                await todo.ack(again, txn=txn)
            assert len((await session.execute(text("SELECT * FROM billed"))).all()) == 1
        await engine.dispose()


@pytest.mark.parametrize("seed", range(4))
async def test_the_rest_of_a_batch_comes_again(tmp_path: Path, seed: int) -> None:
    """Transactions with own rows acknowledge some messages of a batch; the next consumer gets exactly the others."""
    chance = random.Random(seed)

    async with asyncio.timeout(PATIENCE_S), txnframework.open(config_of(tmp_path)) as client:
        await client.create_topic("orders")
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'txn.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with client.producer("orders") as orders:
            await orders.send_many([b"%d" % number for number in range(8)])
        async with client.consumer("orders", "billing", type="shared", start="earliest") as todo:
            received = [await todo.receive(timeout_ms=60_000) for _ in range(8)]
            assert len({(one.id.segment, one.id.position.entry) for one in received}) == 1
            chance.shuffle(received)
            for first in (0, 2, 3):
                async with AsyncSession(engine) as session, client.transaction(commit_with=session) as txn:
                    await todo.ack(*received[first : first + (1 if first == 2 else 2)], txn=txn)
                    session.add(Billed(what=str(first)))
        async with client.consumer("orders", "billing", type="shared") as todo:
            again = {(await todo.receive(timeout_ms=60_000)).value for _ in range(3)}
            assert again == {one.value for one in received[5:]}
            with pytest.raises(ReceiveTimeout):
                await todo.receive(timeout_ms=0)
        await engine.dispose()
