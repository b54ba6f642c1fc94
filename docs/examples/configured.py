"""A client that is configured by a file, which 'txnframework init' writes."""

import asyncio

import txnframework


async def main() -> None:
    async with txnframework.open("txnframework.toml") as client:
        await client.create_topic("orders", exist_ok=True)


asyncio.run(main())
