"""A broker as a program: ``python broker.py STORES``; moves what comes from topic ``raw`` to topic ``in``."""

from __future__ import annotations

import asyncio
import sys

import txnframework
from txnframework.errors import Conflict, NotFound, ReceiveTimeout

SESSION_TTL_MS = 1_500


async def main(url: str) -> None:
    config = {"metadata": {"url": url, "options": {"session_ttl_ms": SESSION_TTL_MS}}, "ledger": {"url": url}}
    async with txnframework.open(config) as client:
        consumer = await client.consumer("raw", "brokers", start="earliest", stand_by=True)
        producer = await client.producer("in")
        while True:
            try:
                messages = await consumer.receive_many(messages_max=3, timeout_ms=1_000)
            except ReceiveTimeout:
                continue  # another one has the subscription, or everything is done; it is killed when it may end
            try:
                async with client.transaction() as txn:
                    for message in messages:
                        await producer.send(message.value, key=message.value, txn=txn)
                    await consumer.ack(*messages, txn=txn)
                    sys.stdout.write("step\n")  # here it is killed: no decided messages, or just being decided
                    sys.stdout.flush()
            except (Conflict, NotFound):
                await consumer.redeliver_unacknowledged()  # others' messages do not come again


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
