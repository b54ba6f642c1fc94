"""Persistent topics with the log family, as a program uses them: over memory and, where it is there, SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txnframework import Client
from txnframework.errors import (
    InvalidInput,
    ReceiveTimeout,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
)
from txnframework.interfaces import IPlannableBuffer
from txnframework.model import Limit, State
from txnframework_legacy.ledger_names import KINDS, parse_ledger_name
from txnframework_legacy.testing import BACKENDS, BUFFERS, HostStores, read_all

ORDERS, INVOICES = "persistent://public/default/orders", "persistent://public/default/invoices"
SCALABLE = "topic://public/default/orders"
SOON_MS = 60_000


@pytest.fixture(params=[(backend, buffer) for backend in BACKENDS for buffer in BUFFERS], ids="-".join)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> HostStores:
    """Persistent topics with either buffer."""
    backend, buffer = request.param
    return HostStores(backend, tmp_path, domains={"persistent": {"buffer": buffer}})


@pytest.fixture(params=BACKENDS)
def marked(request: pytest.FixtureRequest, tmp_path: Path) -> HostStores:
    """With markers in place."""
    return HostStores(request.param, tmp_path)


async def test_produce_and_acknowledge_in_one(stores: HostStores) -> None:
    """Sends and acks of one transaction take effect together or not at all."""
    async with stores.open() as client:
        for topic in (ORDERS, INVOICES):
            await client.create_topic(topic)
        orders, invoices = await client.producer(ORDERS), await client.producer(INVOICES)
        await orders.send_many([b"1", b"2"])
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            first, second = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)]
            async with client.transaction(domain="persistent") as txn:
                await invoices.send(b"invoice 1", txn=txn)
                await consumer.ack(first, txn=txn)
                assert txn.id.family == "log"
                assert await read_all(client, INVOICES) == []
            assert await read_all(client, INVOICES) == [b"invoice 1"]
            given_up = client.transaction(domain="persistent")
            await given_up.begin()
            await invoices.send(b"invoice 2", txn=given_up)
            await consumer.ack(second, txn=given_up)
            await given_up.abort()
            again = await consumer.receive(timeout_ms=SOON_MS)
            assert (again.value, again.redelivery_count) == (b"2", 1)
            await orders.send(b"3")
            third = await consumer.receive(timeout_ms=SOON_MS)
            assert third.value == b"3"
            await consumer.ack(again, third)
    async with stores.open() as client:
        assert await read_all(client, INVOICES) == [b"invoice 1"]
        async with await client.consumer(ORDERS, "billing") as consumer:
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=50)
        assert (await client.layout(ORDERS)).families == ("log",)
        (coordinator,) = [one for one in await client.host.coordinators() if one.family == "log"]
        assert await coordinator.outstanding(None, Limit(9)) == ()


async def test_several_messages_and_a_following_consumer(marked: HostStores) -> None:
    """A consumer that waits behind an open transaction gets everything in order once it is committed; no markers."""
    async with marked.open() as client, marked.open() as other:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        async with await other.consumer(ORDERS, "billing", start="earliest") as consumer:
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await producer.send(b"inside", txn=txn)
            await producer.send(b"behind")
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=50)
            await txn.commit()
            received = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)]
            assert [message.value for message in received] == [b"inside", b"behind"]
            await consumer.ack(*received)
            assert await other.outcome(txn.id) is State.COMMITTED


async def test_what_a_process_left_open_is_aborted(stores: HostStores) -> None:
    """Closing a client aborts its open transactions, so later messages can be read."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
    async with stores.open() as client:
        txn = client.transaction(domain="persistent")
        await txn.begin()
        await (await client.producer(ORDERS)).send(b"inside", txn=txn)
    async with stores.open() as client:
        await (await client.producer(ORDERS)).send(b"behind")
        await client.maintain()
        assert await client.outcome(txn.id) is State.ABORTED
        assert await read_all(client, ORDERS) == [b"behind"]


async def test_what_is_beside_a_topic_goes_with_it(marked: HostStores) -> None:
    """A deleted topic leaves no log and no snapshot, and the next topic of the name starts empty."""
    options: dict[str, Any] = {"buffers": {"marker": {"snapshot_entries": 1}}}

    async def beside(client: Client) -> list[str]:
        return [name for kind in KINDS for name in await client.host.ledgers.list_names(f"{kind}:", "", 9)]

    async def use(client: Client, value: bytes) -> None:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS)
        await producer.send(value)
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            received = await consumer.receive(timeout_ms=SOON_MS)
            assert (received.value, received.redelivery_count) == (value, 0)
            async with client.transaction(domain="persistent") as txn:
                await producer.send(value + b" again", txn=txn)
                await consumer.ack(received, txn=txn)
        assert await read_all(client, ORDERS) == [value, value + b" again"]

    async with marked.open(**options) as client, marked.open(**options) as other:
        for number in range(2):
            await use(client, b"%d" % number)
            assert await read_all(other, ORDERS) == [b"%d" % number, b"%d again" % number]
            assert [parse_ledger_name(name)[1:] for name in await beside(client)] == [
                (number + 1, ""),
                (number + 1, "billing"),
            ]
            await client.delete_topic(ORDERS, force=True)
            assert await beside(client) == []


async def test_a_transaction_belongs_to_one_family(stores: HostStores) -> None:
    """A transaction of one domain is refused on a topic of the other, with what to do, and can only be aborted."""
    async with stores.open() as client:
        for topic in (ORDERS, SCALABLE):
            await client.create_topic(topic)
        for domain, topic in (("segment", ORDERS), ("persistent", SCALABLE)):
            producer = await client.producer(topic)
            txn = client.transaction(domain=domain)
            await txn.begin()
            with pytest.raises(TransactionDomainMismatch):
                await producer.send(b"x", txn=txn)
            with pytest.raises(TransactionHasFailedOperations):
                await txn.commit()
            assert await read_all(client, topic) == []
        with pytest.raises(InvalidInput, match="'topics' is no domain of transactions"):
            client.transaction(domain="topics")


async def test_nobody_reads_its_ledger_without_the_buffer(stores: HostStores) -> None:
    """Neither buffer plans ranges for readers of the ledger alone; callers that need a plan get a clear error."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        buffer = (await client.host.segment(ORDERS)).buffer
        assert not IPlannableBuffer.providedBy(buffer)
        with pytest.raises(InvalidInput, match="cannot be read from the ledger alone; use 'txnframework topic"):
            await client.host.compaction.plan(ORDERS, None, "position", 10)
