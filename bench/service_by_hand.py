"""The order service of docs/examples as it is written by hand: messages are rows of a table, taken with SKIP LOCKED."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
from fastapi import FastAPI
from pydantic import BaseModel, PositiveInt
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

URL = os.environ["DATABASE_URL"]


class Order(BaseModel):
    id: UUID
    customer: str
    cents: PositiveInt


class Base(DeclarativeBase):
    pass


class OrderRow(Base):
    __tablename__ = "shop_orders"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class InvoiceRow(Base):
    __tablename__ = "shop_invoices"
    order_id: Mapped[UUID] = mapped_column(primary_key=True)
    cents: Mapped[int]


class MessageRow(Base):
    __tablename__ = "messages"
    number: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[bytes]


engine = create_async_engine(URL.replace("postgresql:", "postgresql+asyncpg:"), pool_size=20)
sessions = async_sessionmaker(engine)
TAKEN = select(MessageRow.number).order_by(MessageRow.number).with_for_update(skip_locked=True).limit(1)
TAKE = delete(MessageRow).where(MessageRow.number == TAKEN.scalar_subquery()).returning(MessageRow.value)


async def bill_one(session: AsyncSession) -> bool:
    """Store the invoice for a message that is taken; return False if there is none."""
    value = (await session.execute(TAKE)).scalar_one_or_none()
    if value is None:
        return False
    order = Order.model_validate_json(value)
    session.add(InvoiceRow(order_id=order.id, cents=order.cents))
    await session.commit()
    return True


async def work(come: asyncio.Event) -> None:
    """Bill one order after the other, and wait for a notification when none is left."""
    while True:
        come.clear()
        async with sessions() as session:
            is_billed = await bill_one(session)
        if not is_billed:
            await come.wait()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Create the tables, listen, and start the worker."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    listening = await asyncpg.connect(URL)
    come = asyncio.Event()
    await listening.add_listener("messages", lambda *_: come.set())
    worker = asyncio.create_task(work(come))
    yield
    worker.cancel()
    await listening.close()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def post_order(order: Order) -> Order:
    """Store an order and its message in one transaction."""
    async with sessions() as session:
        session.add(OrderRow(id=order.id, customer=order.customer, cents=order.cents))
        session.add(MessageRow(value=order.model_dump_json().encode()))
        await session.execute(select(func.pg_notify("messages", "")))
        await session.commit()
    return order


@app.get("/health")
async def health() -> str:
    """Say that the service works."""
    return "ok"
