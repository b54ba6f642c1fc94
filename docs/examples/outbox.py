"""Outbox and inbox, for an application whose tables are in another database than the metadata store."""

import asyncio
import sqlite3

import txnframework
from txnframework import Client, Message

TABLES = """
CREATE TABLE IF NOT EXISTS shop_orders (what TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (message TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS billed (what TEXT NOT NULL);
"""


def place_order(shop: sqlite3.Connection, what: str) -> None:
    with shop:  # one transaction of the shop's own database
        shop.execute("INSERT INTO shop_orders VALUES (?)", (what,))
        shop.execute("INSERT INTO outbox (value) VALUES (?)", (what.encode(),))


async def relay(client: Client, shop: sqlite3.Connection) -> None:
    """Send what is in the outbox; only one relay runs at a time."""
    async with client.producer("orders", name="shop-outbox") as orders:
        for number, value in shop.execute("SELECT id, value FROM outbox ORDER BY id").fetchall():
            # If the process dies before the DELETE, the message is sent again with the same id and stored once.
            await orders.send(value, sequence_id=number)
            with shop:
                shop.execute("DELETE FROM outbox WHERE id = ?", (number,))


def bill(shop: sqlite3.Connection, order: Message) -> None:
    with shop:
        seen = shop.execute("INSERT OR IGNORE INTO inbox VALUES (?)", (f"{order.producer}/{order.sequence_id}",))
        if seen.rowcount:  # the first delivery
            shop.execute("INSERT INTO billed VALUES (?)", (order.value.decode(),))


async def main() -> None:
    shop = sqlite3.connect("shop.db")
    shop.executescript(TABLES)
    async with txnframework.open() as client:
        await client.create_topic("orders", exist_ok=True)
        place_order(shop, "three apples")
        await relay(client, shop)
        async with client.consumer("orders", "billing", start="earliest") as todo:
            order = await todo.receive()
            bill(shop, order)
            bill(shop, order)  # as after a crash before the acknowledgment
            await todo.ack(order)
    print(shop.execute("SELECT count(*) FROM billed").fetchone()[0], "billed")
    shop.close()


asyncio.run(main())
