"""Behaviours 4, 5 and 8: what makes a transaction whole or nothing, whatever fails or changes while it is written."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Producer, State, Transaction
from txnframework.errors import (
    Closed,
    InvalidInput,
    LedgerSealed,
    OutcomeUnknown,
    TopicNotFound,
    TransactionConflict,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework_memory import MemoryLedgerStore, MemoryManagedLedger, MemoryMetadataStore

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

HASTY = {"message_bytes_max": 1_000, "retries_max": 1, "retry_delay_ms": 1, "retry_delay_ms_max": 1}
WRITES = {
    MemoryMetadataStore: ("put", "delete", "apply"),
    MemoryManagedLedger: ("append", "roll", "seal", "trim"),
    MemoryLedgerStore: ("create", "delete"),
}

Failing = Callable[[Client, Producer, Transaction], Awaitable[None]]


async def too_large(client: Client, producer: Producer, txn: Transaction) -> None:
    with pytest.raises(InvalidInput, match="message_bytes_max"):
        await producer.send(b"x" * 2_000, txn=txn)


async def given_up(client: Client, producer: Producer, txn: Transaction) -> None:
    sending = asyncio.ensure_future(producer.send(b"never", txn=txn))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def store_away(client: Client, producer: Producer, txn: Transaction) -> None:
    stores: list[Any] = [client.host.metadata, client.host.ledgers]
    for store in stores:
        store.cut()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await producer.send(b"never", txn=txn)
    for store in stores:
        store.restore()


async def sealed(client: Client, producer: Producer, txn: Transaction) -> None:
    """After a split, the topic's producer follows the children; a producer of the segment cannot."""
    bound = await client.producer("segment://public/default/orders/0000-ffff-0")
    await client.split("orders", 0)
    with pytest.raises(LedgerSealed):
        await bound.send(b"never", txn=txn)


async def deleted(client: Client, producer: Producer, txn: Transaction) -> None:
    await client.create_topic("short-lived")
    other = await client.producer("short-lived")
    await client.delete_topic("short-lived")
    with pytest.raises(TopicNotFound):
        await other.send(b"never", txn=txn)


async def closed(client: Client, producer: Producer, txn: Transaction) -> None:
    other = await client.producer("orders")
    await other.close()
    with pytest.raises(Closed):
        await other.send(b"never", txn=txn)


async def one_of_many(client: Client, producer: Producer, txn: Transaction) -> None:
    with pytest.raises(InvalidInput):
        await producer.send_many([b"1", b"x" * 2_000, b"3"], txn=txn)


@pytest.mark.parametrize("fail", [too_large, given_up, store_away, sealed, deleted, closed, one_of_many])
async def test_a_failed_send_makes_commit_abort(memory: Stores, fail: Failing) -> None:
    """No message of the transaction is visible, acknowledged messages return, and commit raises the reason."""
    async with memory.open(client=HASTY) as client:
        for topic in ("orders", "invoices"):
            await client.create_topic(topic)
        producer, invoices = await client.producer("orders"), await client.producer("invoices")
        consumer = await client.consumer("invoices", "billing", start="earliest")
        await invoices.send(b"before")
        received = await consumer.receive(timeout_ms=60_000)
        txn = client.transaction()
        await txn.begin()
        await producer.send(b"never", txn=txn)
        await invoices.send(b"never", txn=txn)
        await consumer.ack(received, txn=txn)
        await fail(client, producer, txn)
        with pytest.raises(TransactionHasFailedOperations, match=str(txn.id)) as refused:
            await txn.commit()
        assert refused.value.__cause__ is not None
        assert f"({str(refused.value.__cause__) or type(refused.value.__cause__).__name__})" in str(refused.value)
        assert await client.outcome(txn.id) is txn.state is State.ABORTED
        await producer.send(b"after")
        assert await memory.read(client, "orders") == [b"after"]
        assert await memory.read(client, "invoices") == [b"before"]
        assert (await consumer.receive(timeout_ms=60_000)).id == received.id
        await consumer.close()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_all_topics_or_none_whatever_changes_meanwhile(stores: Stores, commits: bool) -> None:
    """A transaction spans topics of several namespaces, one of which is split, one merged and one sealed meanwhile."""
    async with stores.open() as client, stores.open() as elsewhere:
        topics = {"topic://public/default/split": 1, "topic://shop/sales/merged": 2, "topic://shop/stock/still": 1}
        for topic, segments in topics.items():
            await client.create_topic(topic, segments=segments)
        producers = [await client.producer(topic) for topic in topics]
        values = [b"%d" % number for number in range(8)]

        async def send_all(producer: Producer, values: list[bytes]) -> None:
            for value in values:
                await producer.send(value, key=value, txn=txn)

        txn = client.transaction()
        await txn.begin()
        for producer in producers:
            await send_all(producer, values[:4])
        await elsewhere.split("topic://public/default/split", 0)
        await elsewhere.merge("topic://shop/sales/merged", 0, 1)
        for producer in producers:
            await send_all(producer, values[4:])
        # Nothing more is written to what is sealed last: its outcome has to take effect all the same.
        await elsewhere.split("topic://shop/stock/still", 0)
        for reader in (client, elsewhere):
            assert [await stores.read(reader, topic) for topic in topics] == [[]] * 3
        await (txn.commit() if commits else txn.abort())
        for reader in (client, elsewhere):
            for topic in topics:
                assert sorted(await stores.read(reader, topic)) == (values if commits else [])


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_transaction_that_is_over(stores: Stores, end: str) -> None:
    """Every use of an ended transaction raises an error with its id and outcome; nothing is stored, and acks remain."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2"])
        first, second = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        txn = client.transaction()
        await txn.begin()
        await consumer.ack(first, txn=txn)
        await getattr(txn, end)()
        for part in (txn, client.join(txn.id)):
            uses = (producer.send(b"late", txn=part), consumer.ack(second, txn=part))
            for use in (*uses, consumer.ack_cumulative(second, txn=part)):
                with pytest.raises(TransactionConflict) as refused:
                    await use
                ended = f"transaction {txn.id}: it has ended ({txn.state.value}); begin another one"
                assert str(refused.value) == ended
        with pytest.raises(InvalidInput, match="has begun already; make another one"):
            await txn.begin()
        assert await stores.read(client, "orders") == [b"1", b"2"]
        await consumer.close()
        async with await client.consumer("orders", "billing") as again:
            left = [b"2"] if end == "commit" else [b"1", b"2"]
            assert await stores.receive(again, len(left)) == left


async def test_a_transaction_that_has_not_begun(memory: Stores) -> None:
    """The error says how to begin a transaction."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        with pytest.raises(InvalidInput, match="it inside"):
            await producer.send(b"early", txn=client.transaction())
        assert await memory.read(client, "orders") == []


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("segments", [1, 2])
def test_many_messages_whose_reply_was_lost_are_sent_again(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, lost: int, segments: int
) -> None:
    """Messages with chosen sequence ids are repeated by another process after a split: no loss, no duplicates."""
    appends = 0
    loses = False
    append = MemoryManagedLedger.append

    async def lose_the_reply(ledger: MemoryManagedLedger, *arguments: Any) -> Any:
        nonlocal appends
        if not loses:
            return await append(ledger, *arguments)
        appends += 1
        if appends > lost:
            raise Unavailable("the store is away")
        answer = await append(ledger, *arguments)
        if appends == lost:
            raise OutcomeUnknown("the reply was lost")
        return answer

    async def work() -> None:
        nonlocal loses
        values = [b"%d" % number for number in range(8)]
        async with memory.open(client={"entry_messages_max": 2, "retries_max": 0}) as client:
            await client.create_topic("orders", segments=segments)
            producer = await client.producer("orders", name="till-7")
            await producer.send(b"before", sequence_id=6)
            loses = True
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await producer.send_many(values, sequence_id=7)
            loses = False
            stood = await memory.read(client, "orders")
            assert 1 < len(stood) < 1 + len(values)
        async with memory.open() as client:
            await client.split("orders", 0)
            producer = await client.producer("orders", name="till-7")
            first = await producer.send_many(values, sequence_id=7)
            assert await producer.send_many(values, sequence_id=7) == first
            await producer.send(b"after", sequence_id=7 + len(values))
            assert sorted(await memory.read(client, "orders")) == sorted([b"before", *values, b"after"])

    monkeypatch.setattr(MemoryManagedLedger, "append", lose_the_reply)
    memory.run(work())


async def test_sequence_ids_of_many_messages_stay_in_range(memory: Stores) -> None:
    """If the last sequence id would be out of range, no message is sent; an empty list needs no ids."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for first in (-1, 2**63 - 1):
            with pytest.raises(InvalidInput, match="sequence_id"):
                await producer.send_many([b"1", b"2"], sequence_id=first)
        assert await producer.send_many([], sequence_id=2**63 - 1) == ()
        assert await memory.read(client, "orders") == []


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts everything that is written to the stores in memory, by method."""
    counted: Counter[str] = Counter()

    def counting(kind: type, name: str) -> None:
        write = getattr(kind, name)

        @functools.wraps(write)
        async def count(store: Any, *arguments: Any) -> Any:
            counted[f"{kind.__name__}.{name}"] += 1
            return await write(store, *arguments)

        monkeypatch.setattr(kind, name, count)

    for kind, names in WRITES.items():
        for name in names:
            counting(kind, name)
    return counted


async def test_building_a_producer_writes_nothing(memory: Stores, writes: Counter[str]) -> None:
    """A producer of a topic or a segment writes nothing.

    The first transactional send writes its intent and its entry.
    """
    async with memory.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders", segments=2)
        async with client.transaction() as txn:
            writes.clear()
            producers = [
                await client.producer("orders"),
                await client.producer("orders", name="till-7"),
                await client.producer("segment://public/default/orders/0000-7fff-0"),
            ]
            for producer in producers[1:]:
                await producer.close()
            assert not writes
            await producers[0].send(b"one", txn=txn)
            assert writes == {"MemoryMetadataStore.apply": 1}
            await producers[0].send(b"two", key=b"7", txn=txn)
