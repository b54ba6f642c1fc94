"""A message that repeatedly kills a real process."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import txnframework
from txnframework import Client

if TYPE_CHECKING:
    from conftest import Stores

PROGRAM = """
import asyncio, os, signal, sys
import txnframework

URL = sys.argv[1]
CONFIG = {"metadata": {"url": URL}, "ledger": {"url": URL}, "subscriptions": {"redelivery_delay_ms": 0}}

async def main():
    rule = txnframework.DeadLetter(redeliveries_max=1)
    async with (
        txnframework.open(CONFIG) as client,
        await client.consumer("orders", "billing", type="shared", name="worker", dead_letter=rule) as orders,
        await client.producer("invoices") as invoices,
    ):
        async def bill(order, txn):
            await invoices.send(order.value, txn=txn)
            if order.value == b"bad":
                os.kill(os.getpid(), signal.SIGKILL)
            if order.value == b"last":
                orders.stop()

        await orders.run(bill, concurrency=3)

asyncio.run(main())
"""


async def test_a_message_that_kills_its_process(sqlite: Stores) -> None:
    """It becomes a dead letter after few deliveries, and every other message is handled once."""

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, sqlite.url)

    async def values(client: Client, topic: str) -> list[bytes | None]:
        async with await client.reader(topic) as reader:
            return [one.value async for one in reader]

    async with txnframework.open(sqlite.config()) as client:
        for topic in ("orders", "invoices", "orders-billing-DLQ"):
            await client.create_topic(topic)
        await client.subscribe("orders", "billing", start="earliest")
        producer = await client.producer("orders")
        await producer.send_many([b"first", b"bad", b"second", b"third"])
        letters = await client.consumer("orders-billing-DLQ", "test", start="earliest")
        moved = asyncio.ensure_future(letters.receive())
        kills, process = 0, await start()
        try:
            while True:
                ended = asyncio.ensure_future(process.wait())
                await asyncio.wait({ended, moved}, return_when=asyncio.FIRST_COMPLETED)
                if moved.done():
                    break
                assert await ended == -signal.SIGKILL
                kills += 1
                assert kills <= 5
                process = await start()
            assert (await moved).value == b"bad"
            # Transactions of a killed process hold messages back until its session has expired.
            async with await client.consumer("invoices", "test", start="earliest") as invoices:
                for _ in range(3):
                    await invoices.receive()
            await producer.send(b"last")
            assert await ended == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        assert kills >= 2
        await letters.close()
        sent = await values(client, "invoices")
        assert sorted(one for one in sent if one) == [b"first", b"last", b"second", b"third"]
        assert await values(client, "orders-billing-DLQ") == [b"bad"]
