"""An order becomes an invoice and a row in a table of the application: one COMMIT decides all three."""

import asyncio
import sqlite3

import txnframework

DATABASE = "txnframework-data/txn.db"  # the file of the metadata store


async def main() -> None:
    async with txnframework.open() as client:
        await client.create_topic("orders", exist_ok=True)
        await client.create_topic("invoices", exist_ok=True)
        async with client.producer("orders") as orders:
            await orders.send(b"three apples")
        connection = sqlite3.connect(DATABASE)
        connection.execute("CREATE TABLE IF NOT EXISTS billed (what TEXT NOT NULL)")
        async with (
            client.consumer("orders", "billing", start="earliest") as todo,
            client.producer("invoices") as invoices,
        ):
            order = await todo.receive()
            connection.execute("INSERT INTO billed VALUES (?)", (order.value.decode(),))
            invoice = invoices.outgoing(b"invoice for " + order.value)
            await client.transact(invoice, todo.acknowledging(order), commit_with=connection)
        print(connection.execute("SELECT count(*) FROM billed").fetchone()[0], "billed")
        connection.close()


asyncio.run(main())
