"""An order service: POST /orders stores a row and sends a message in one COMMIT; a worker bills each order once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, PositiveInt
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateTable

import txnframework
from txnframework import Client, Message, Producer, TxnFrameworkError
from txnframework.errors import InvalidInput
from txnframework.serializers import PydanticJson

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///orders.db")
STORES_URL = os.environ.get("STORES_URL", DATABASE_URL)  # the same database, perhaps another schema of it
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}

log = logging.getLogger("uvicorn.error")


class Order(BaseModel):
    id: UUID
    customer: str
    cents: PositiveInt


ORDERS = PydanticJson(Order, schema="order", version=1)


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


@dataclass
class Service:
    """What one process has open."""

    sessions: async_sessionmaker[AsyncSession]
    client: Client
    producer: Producer[Order]

    async def place(self, order: Order) -> None:
        """Store the order and send it to the topic; both happen, or neither."""
        async with self.sessions() as session:
            session.add(OrderRow(id=order.id, customer=order.customer, cents=order.cents))
            await self.client.transact(self.producer.outgoing(order, key=order.id.bytes), commit_with=session)


async def bill(message: Message[Order], session: AsyncSession) -> None:
    """Store the invoice for an order; the message is acknowledged by the same COMMIT."""
    order = message.content
    session.add(InvoiceRow(order_id=order.id, cents=order.cents))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the client and start the worker; at the end, let the worker finish its message."""
    scheme, _, rest = DATABASE_URL.partition("://")
    engine = create_async_engine(f"{DRIVERS[scheme]}://{rest}")
    async with txnframework.open({"metadata": {"url": STORES_URL}}) as client:
        async with engine.begin() as connection:  # after the framework, which has to find a new schema empty
            for table in Base.metadata.sorted_tables:
                await connection.execute(CreateTable(table, if_not_exists=True))
        await client.create_topic("orders", segments=4, exist_ok=True)
        async with (
            client.producer("orders", serializer=ORDERS) as producer,
            client.consumer("orders", "billing", type="shared", start="earliest", serializer=ORDERS) as consumer,
        ):
            sessions = async_sessionmaker(engine)
            app.state.service = Service(sessions, client, producer)
            app.state.worker = worker = asyncio.create_task(consumer.run(bill, commit_with=sessions))
            yield
            consumer.stop()
            await worker
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def post_order(order: Order, request: Request) -> Order:
    """Place an order. A request that was repeated, because its answer was lost, stores the order once."""
    service: Service = request.app.state.service
    with suppress(IntegrityError):  # the first request was carried out
        await service.place(order)
    return order


@app.get("/health")
async def health(request: Request) -> JSONResponse:
    """Say whether this process can work: both stores answer, and the worker has not failed."""
    service: Service = request.app.state.service
    try:
        ping = await service.client.ping(timeout_ms=2_000)
    except TxnFrameworkError as error:
        log.warning("unhealthy: %s", error)  # not in the answer: the error names the servers
        return JSONResponse({"error": "a store does not answer"}, 503)
    if request.app.state.worker.done():
        return JSONResponse({"error": "the worker has ended"}, 503)
    return JSONResponse({"process": os.getpid(), "metadata_ms": ping.metadata_ms, "ledger_ms": ping.ledger_ms})


@app.exception_handler(InvalidInput)
async def refused(_: Request, error: InvalidInput) -> JSONResponse:
    """Say that a repeated request fails too; for example, the order is larger than a message may be."""
    log.warning("a request was refused: %s", error)
    return JSONResponse({"error": "the order cannot be stored"}, 422)


@app.exception_handler(TxnFrameworkError)
async def unavailable(_: Request, error: TxnFrameworkError) -> JSONResponse:
    """Ask the caller to repeat the request: it may have been carried out, or not."""
    log.warning("a request failed: %s", error)
    return JSONResponse({"error": "repeat the request"}, 503, {"Retry-After": "1"})
