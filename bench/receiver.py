"""A consumer in a separate process: it prints the monotonic time at which it received each message."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import txnframework


async def main(config: dict[str, object], topic: str) -> None:
    async with txnframework.open(config) as client, await client.consumer(topic, "s", start="earliest") as consumer:
        print("ready", flush=True)
        while True:
            message = await consumer.receive()
            received_ns = time.monotonic_ns()
            await consumer.ack(message)
            print(received_ns, flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
