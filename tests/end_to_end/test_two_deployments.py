"""A program with clients of two deployments, whose transactions have the same ids."""

from __future__ import annotations

import pytest

import txnframework
from txnframework.errors import InvalidInput


@pytest.mark.parametrize("joined", [False, True])
async def test_a_transaction_of_the_other_deployment(joined: bool) -> None:
    """It is refused, and does not change the transaction with the same id here; each goes on in its deployment."""
    stores = {"metadata": {"url": "memory:"}}
    async with txnframework.open(stores) as here, txnframework.open(stores) as there:
        for client in (here, there):
            await client.create_topic("orders")
        consumer = await here.consumer("orders", "billing", start="earliest")
        producer, other_producer = await here.producer("orders"), await there.producer("orders")
        await producer.send(b"1")
        order = await consumer.receive()
        async with here.transaction() as txn, there.transaction() as other:
            assert txn.id == other.id
            part = there.join(other.id) if joined else other
            for call in (
                lambda: producer.send(b"2", txn=part),
                lambda: consumer.ack(order, txn=part),
                lambda: consumer.ack_cumulative(order, txn=part),
            ):
                with pytest.raises(InvalidInput, match="a client of other stores"):
                    await call()
            await producer.send(b"3", txn=txn)
            await other_producer.send(b"4", txn=other)
        assert [one.value async for one in await here.reader("orders")] == [b"1", b"3"]
        assert [one.value async for one in await there.reader("orders")] == [b"4"]
