"""
Leave a transaction open, as a stuck program does: readers wait for its message.

The topic invoices must exist.
"""

import asyncio

import txnframework


async def main() -> None:
    async with txnframework.open() as client, client.producer("invoices") as invoices:
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        await invoices.send(b"not yet", txn=txn)
        print(txn.id)


asyncio.run(main())
