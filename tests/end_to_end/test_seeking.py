"""What happens to acknowledgments when someone seeks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Stores


def test_an_acknowledgment_under_way_during_a_seek(memory: Stores) -> None:
    """It acknowledges nothing of what is delivered after the seek, in the cursor or in this process's memory."""

    async def work() -> None:
        # The write waits so long for company that the seek overtakes it.
        async with memory.open(subscriptions={"cursor_delay_ms": 400}) as client:
            await client.create_topic("orders")
            await (await client.producer("orders")).send_many([b"1"])
            await (await client.producer("orders")).send_many([b"2"])
            consumer = await client.consumer("orders", "billing", start="earliest")
            first = await consumer.receive(timeout_ms=10_000)
            acknowledging = asyncio.ensure_future(consumer.ack(first))
            await asyncio.sleep(0)
            await consumer.seek(first.id)
            assert await memory.receive(consumer, 1) == [b"1"]
            await acknowledging
            second = await consumer.receive(timeout_ms=10_000)
            assert second.value == b"2"
            await consumer.ack(second)
            await consumer.close()
            consumer = await client.consumer("orders", "billing")
            assert await memory.receive(consumer, 1) == [b"1"]
            await consumer.close()

    memory.run(work())
