"""Two orders at a time take from one stock in SQLite; neither loses what the other took."""

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import txnframework
from txnframework import Client, Producer

DATABASE = "txnframework-data/txn.db"  # the file of the metadata store


async def take(client: Client, engine: AsyncEngine, orders: Producer[bytes], apples: int) -> None:
    """Send an order, and take its apples from the stock."""
    async with AsyncSession(engine) as session:
        await session.execute(text("BEGIN IMMEDIATE"))  # from here on, this connection is the only writer
        stock = (await session.execute(text("SELECT apples FROM stock"))).scalar_one()
        if stock < apples:
            raise ValueError("too few apples")
        await session.execute(text("UPDATE stock SET apples = :left"), {"left": stock - apples})
        await client.transact(orders.outgoing(b"%d apples" % apples), commit_with=session)


async def main() -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}")
    async with txnframework.open() as client:
        await client.create_topic("orders", exist_ok=True)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE stock (apples INTEGER NOT NULL)"))
            await connection.execute(text("INSERT INTO stock VALUES (100)"))
        async with client.producer("orders") as orders:
            await asyncio.gather(*(take(client, engine, orders, 3) for _ in range(4)))
        async with AsyncSession(engine) as session:
            print((await session.execute(text("SELECT apples FROM stock"))).scalar_one(), "apples")
    await engine.dispose()


asyncio.run(main())
