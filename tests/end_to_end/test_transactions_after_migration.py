"""Programs that were opened before a topic migrated go on with transactions of the family that it has now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from migrating import BOTH, NEW, OLD, migrate, values

from txnframework import Client, Producer
from txnframework.errors import TransactionConflict, TransactionDomainMismatch

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

HOPS = pytest.mark.parametrize(("first", "then"), [(OLD, NEW), (NEW, OLD)], ids=["to the metadata family", "back"])


async def send(client: Client, producer: Producer, topic: str, value: bytes) -> None:
    async with client.transaction(domain=await client.transaction_domain(topic)) as txn:
        await producer.send(value, txn=txn)


@HOPS
def test_a_producer_that_sends_in_transactions_only(stores: Stores, first: str, then: str) -> None:
    """It follows the topic, although no send outside of transactions shows it that the segment was sealed."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(first)
            sender = await elsewhere.producer(first)
            await send(elsewhere, sender, first, b"1")
            await migrate(client, first, then)
            await send(elsewhere, sender, first, b"2")
            await migrate(client, then, first)
            await send(elsewhere, sender, first, b"3")
            assert await values(client, first) == [b"1", b"2", b"3"]

    stores.run(work())


@HOPS
def test_a_transaction_that_began_before(stores: Stores, first: str, then: str) -> None:
    """Its send raises a conflict, after which programs begin another transaction; a wrong family is an error."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(first)
            sender = await elsewhere.producer(first)
            domain = await elsewhere.transaction_domain(first)
            late = elsewhere.transaction(domain=domain)
            await late.begin()
            await migrate(client, first, then)
            with pytest.raises(TransactionConflict, match="migrated"):
                await sender.send(b"late", txn=late)
            await late.abort()
            async with elsewhere.transaction(domain=domain) as wrong:
                with pytest.raises(TransactionDomainMismatch):
                    await sender.send(b"wrong", txn=wrong)
                with pytest.raises(TransactionDomainMismatch):
                    await (await elsewhere.producer(first)).send(b"wrong", txn=wrong)
                await wrong.abort()
            await send(elsewhere, sender, first, b"right")
            assert await values(client, first) == [b"right"]

    stores.run(work())
