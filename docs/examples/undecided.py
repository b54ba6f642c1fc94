"""
Leave a transaction open, as a program does that is stuck: what it sent is nobody's business yet.

The topic invoices has to be there.
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
