"""
Dispatch waits for announcements: while nothing can be delivered, the stores are not read, however long that lasts.

All reads of both stores are counted, in each process. Sweeps and maintenance are switched off in
the process that waits: they look at the stores at an interval of their own, in one elected process, whether or not
anybody waits for messages. Counted besides is what the event loop runs, so that nothing turns without reading either.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Message
from txnframework.testing.clock import STEPS_BETWEEN, VirtualEnvironment, run_ready
from txnframework_memory import MemoryManagedLedger, MemoryMetadataStore

if TYPE_CHECKING:
    from conftest import Stores

HOUR_MS = 3_600_000
READS = {
    MemoryMetadataStore: ("get", "scan", "scan_index"),
    MemoryManagedLedger: ("read", "tail", "count", "find_time"),
}
TURNS = "turns of the event loop"
KINDS = ("exclusive", "failover", "shared", "key_shared")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the reads, by method."""
    counted: Counter[str] = Counter()

    def counting(kind: type, name: str) -> None:
        read = getattr(kind, name)

        @functools.wraps(read)
        async def count(store: Any, *arguments: Any) -> Any:
            counted[f"{kind.__name__}.{name}"] += 1
            return await read(store, *arguments)

        monkeypatch.setattr(kind, name, count)

    for kind, names in READS.items():
        for name in names:
            counting(kind, name)
    run = asyncio.Handle._run

    def turn(handle: Any) -> None:
        counted[TURNS] += 1
        run(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", turn)
    return counted


@pytest.fixture
def virtual(memory: Stores) -> VirtualEnvironment:
    memory.environment = VirtualEnvironment()
    return memory.environment


async def an_hour(clock: VirtualEnvironment, reads: Counter[str]) -> None:
    """Let an hour pass once everything is quiet; nothing may be read in it, and nothing else may run."""
    await clock.advance(1_000)
    await run_ready()
    reads.clear()
    await clock.advance(HOUR_MS)
    turns = reads.pop(TURNS)
    assert not reads
    assert turns <= 3 * STEPS_BETWEEN, "more than this test's own turns"


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_at_the_end_of_a_topic(
    memory: Stores, virtual: VirtualEnvironment, reads: Counter[str], kind: str
) -> None:
    """Also when everything was received and acknowledged before; what comes is delivered at once."""
    async with memory.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders", segments=4)
        producer = await client.producer("orders")
        await producer.send(b"0")
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        async with client.transaction() as txn:
            await consumer.ack(await consumer.receive(), txn=txn)
        waiting: asyncio.Future[Message] = asyncio.ensure_future(consumer.receive())
        await an_hour(virtual, reads)
        await producer.send(b"1")
        assert (await waiting).value == b"1"
        assert reads
        await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_behind_an_open_transaction(
    memory: Stores, virtual: VirtualEnvironment, reads: Counter[str], kind: str
) -> None:
    """Unread messages of and after an open transaction are not polled; the end of the transaction is noticed."""
    alone = {"sweep": False}
    async with memory.open(transactions=alone) as client, memory.open(transactions=alone) as elsewhere:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        producer = await elsewhere.producer("orders")
        txn = elsewhere.transaction(timeout_ms=2 * HOUR_MS)
        await txn.begin()
        await producer.send(b"0", txn=txn)
        await producer.send(b"1")
        waiting = asyncio.ensure_future(consumer.receive())
        await an_hour(virtual, reads)
        await txn.commit()
        assert (await waiting).value == b"0"
        assert (await consumer.receive()).value == b"1"
        await consumer.close()


async def test_waiting_for_a_transaction_that_holds_messages(
    memory: Stores, virtual: VirtualEnvironment, reads: Counter[str]
) -> None:
    """Acks of an open transaction are not polled; when it aborts, the messages are redelivered at once."""
    async with memory.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"0")
        consumer = await client.consumer("orders", "billing", start="earliest")
        txn = client.transaction(timeout_ms=2 * HOUR_MS)
        await txn.begin()
        await consumer.ack(await consumer.receive(), txn=txn)
        waiting = asyncio.ensure_future(consumer.receive())
        await an_hour(virtual, reads)
        await txn.abort()
        assert (await waiting).redelivery_count == 1
        await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_for_room(memory: Stores, virtual: VirtualEnvironment, reads: Counter[str], kind: str) -> None:
    """While no consumer takes messages that were read ahead, nothing more is read, and no task runs."""
    bounds: dict[str, object] = {"read_entries_max": 1, "unacknowledged_messages_max": 1}
    async with memory.open(transactions={"sweep": False}, subscriptions=bounds) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for number in range(5):
            await producer.send(b"%d" % number)
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        first = await consumer.receive()
        await an_hour(virtual, reads)
        await consumer.ack(first)
        assert (await consumer.receive()).value == b"1"
        await consumer.close()
