"""Behaviours 45 to 52: opening stored data that cannot be read, takes long, or is closed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Isolation, State
from txnframework.errors import Closed, CorruptEntry, OutcomeUnknown, StoreMismatch, TxnFrameworkError, Unavailable
from txnframework.model import Action, End
from txnframework.testing.clock import VirtualEnvironment, run_ready
from txnframework_memory import MemoryManagedLedger, MemoryMetadataStore

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

SEGMENT = "segment://public/default/orders/0000-ffff-0"
SOON_S = 60
MINUTE_MS = 60_000


async def filled(stores: Stores, *values: bytes) -> None:
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for value in values:
            await producer.send(value)
        await client.subscribe("orders", "billing", start="earliest")


async def consume(client: Client) -> object:
    async with await client.consumer("orders", "billing") as consumer:
        return await consumer.receive()


async def produce(client: Client) -> object:
    return await (await client.producer("orders")).send(b"late")


async def produce_in_transaction(client: Client) -> object:
    async with client.transaction() as txn:
        return await (await client.producer("orders")).send(b"late", txn=txn)


async def read(client: Client) -> object:
    async with await client.reader("orders") as reader:
        return [message.value async for message in reader]


USERS: tuple[Callable[[Client], Awaitable[object]], ...] = (consume, produce, produce_in_transaction, read)
STEPS = {
    "open": (MemoryMetadataStore, "scan_index"),
    "tail": (MemoryManagedLedger, "tail"),
    "entries": (MemoryManagedLedger, "read"),
}


class Broken:
    """The stores of one process, of which one kind of read does what the test wants; ``asked`` counts those."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str, does: Callable[[], Awaitable[None]]) -> None:
        self.asked = 0
        self.is_on = False
        self.reached = asyncio.Event()
        kind, name = STEPS[step]
        real = getattr(kind, name)

        async def instead(store: Any, *arguments: Any) -> Any:
            if self.is_on:
                self.asked += 1
                self.reached.set()
                await does()
            return await real(store, *arguments)

        monkeypatch.setattr(kind, name, instead)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("step", ["open", "tail"])
async def test_closing_while_recovering(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, step: str, user: Callable[[Client], Awaitable[object]]
) -> None:
    """Callers that wait for a store that does not answer get an error, and the close does not wait for the store."""
    await filled(memory, b"1")

    async def hang() -> None:
        await asyncio.Event().wait()

    broken = Broken(monkeypatch, step, hang)
    async with asyncio.timeout(SOON_S):
        async with memory.open(transactions={"sweep": False}) as client:
            broken.is_on = True
            waiting = asyncio.ensure_future(user(client))
            await broken.reached.wait()
            await run_ready()
        with pytest.raises(Closed):
            await waiting
    broken.is_on = False
    async with memory.open() as client:
        assert await memory.read(client, "orders") == [b"1"]


async def test_closing_a_producer_while_its_segment_recovers(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close waits until the messages are stored; if the client is closed first, the send raises an error."""
    await filled(memory)
    for answers in (True, False):
        answered = asyncio.Event()

        async def wait(answered: asyncio.Event = answered) -> None:
            await answered.wait()

        async with memory.open(transactions={"sweep": False}) as client:
            producer = await client.producer("orders")
            with monkeypatch.context() as patch:
                broken = Broken(patch, "open", wait)
                broken.is_on = True
                sending = asyncio.ensure_future(producer.send(b"1"))
                await broken.reached.wait()
                closing = asyncio.ensure_future(producer.close())
                await run_ready()
                assert not closing.done()
                with pytest.raises(Closed):
                    await producer.send(b"too late")
                if answers:
                    answered.set()
                    await sending
                    await closing
        async with asyncio.timeout(SOON_S):
            await closing
        if not answers:
            with pytest.raises(Closed):
                await sending
    async with memory.open() as client:
        assert await memory.read(client, "orders") == [b"1"]


@pytest.mark.parametrize("step", STEPS)
async def test_an_error_that_passes_is_tried_again_slowly(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A store that cannot be read is retried a few times per second; later messages are delivered then."""
    clock = memory.environment = VirtualEnvironment()
    await filled(memory)

    async def fail() -> None:
        raise Unavailable("the store is away")

    broken = Broken(monkeypatch, step, fail)
    # Announced values are dropped, so that all of them are read.
    buffers: dict[str, object] = {"metadata": {"ahead_bytes_max": 1}}
    async with (
        memory.open(transactions={"sweep": False}, buffers=buffers) as client,
        memory.open() as elsewhere,
    ):
        consumer = await client.consumer("orders", "billing")
        waiting = asyncio.ensure_future(consumer.receive())
        await run_ready()
        broken.is_on = True
        appended = asyncio.ensure_future((await elsewhere.producer("orders")).send(b"1"))
        await clock.advance(1_000)
        assert broken.asked
        broken.asked = 0
        await run_ready(2_000)
        assert not broken.asked, "asked again although no time has passed"
        await clock.advance(MINUTE_MS)
        assert broken.asked <= 20 * MINUTE_MS // 1_000
        broken.is_on = False
        await clock.advance(1_000)
        with suppress(TxnFrameworkError):
            await appended
        if appended.exception() is not None:
            await (await elsewhere.producer("orders")).send(b"1")
        assert (await waiting).value == b"1"
        await consumer.close()


@pytest.mark.parametrize("user", USERS)
async def test_an_error_that_lasts_is_told_after_some_attempts(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, user: Callable[[Client], Awaitable[object]]
) -> None:
    """Opening is retried with growing pauses, then fails; the same client can open the segment later."""
    clock = memory.environment = VirtualEnvironment()
    await filled(memory, b"1")

    async def fail() -> None:
        raise Unavailable("the store is away")

    broken = Broken(monkeypatch, "open", fail)
    async with memory.open(transactions={"sweep": False}) as client:
        broken.is_on = True
        waiting = asyncio.ensure_future(user(client))
        await clock.advance(10 * MINUTE_MS)
        assert waiting.done()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await waiting
        assert broken.asked <= 4 * (client.host.config.client.retries_max + 1)
        broken.is_on = False
        assert (await user(client)) is not None


@pytest.mark.parametrize("user", USERS)
async def test_what_cannot_be_opened_ends_with_its_cause(
    memory: Stores, user: Callable[[Client], Awaitable[object]]
) -> None:
    """The error names a segment whose ledger is missing, at once and on every call; nothing retries in a loop."""
    memory.environment = VirtualEnvironment()
    await filled(memory, b"1")
    async with memory.open() as client:
        await client.host.ledgers.delete(SEGMENT, None)
        for _ in range(2):
            with pytest.raises(StoreMismatch, match=SEGMENT):
                await user(client)


async def test_a_damaged_entry_ends_the_dispatch_with_its_cause(
    memory: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer gets an error with segment and position, after the messages before.

    Once repaired, a new one continues.
    """
    await filled(memory, b"1", b"2", b"3")
    read = MemoryManagedLedger.read

    async def damaged(self: Any, *arguments: Any) -> Any:
        entries = await read(self, *arguments)
        return tuple(
            type(entry)(entry.position, entry.data[:-1] + b"?") if entry.position.entry_id == 1 else entry
            for entry in entries
        )

    async with memory.open() as client:
        monkeypatch.setattr(MemoryManagedLedger, "read", damaged)
        consumer = await client.consumer("orders", "billing")
        with pytest.raises(CorruptEntry) as told:
            await memory.receive(consumer, 2)
        assert SEGMENT in str(told.value)
        assert "1:1" in str(told.value)
        await consumer.close()
        with pytest.raises(CorruptEntry, match=SEGMENT):
            await memory.read(client, "orders")
        monkeypatch.undo()
        async with await client.consumer("orders", "billing") as again:
            assert await memory.receive(again, 3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_a_child_that_holds_nothing_but_an_open_transaction(stores: Stores, commits: bool) -> None:
    """Opened anew before anything ended, it shows nothing that is undecided; then it follows the outcome."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await client.split("orders", 0)
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        for number in range(8):
            await producer.send(b"%d" % number, key=b"key %d" % number, txn=txn)
    for _ in range(2):
        async with stores.open() as client:
            assert await stores.read(client, "orders") == []
            shown = await stores.read(client, "orders", isolation=Isolation.READ_UNCOMMITTED)
            assert len(shown) == 8
            await client.subscribe("orders", "billing", start="earliest")
            assert (await client.lag("orders", "billing")).messages == 0
    async with stores.open() as client:
        await (client.commit(txn.id) if commits else client.abort(txn.id))
    async with stores.open() as client:
        found = await stores.read(client, "orders")
        assert sorted(found) == ([b"%d" % number for number in range(8)] if commits else [])


def test_finished_transactions_cost_nothing(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a segment and a subscription reads as much after hundreds of transactions as after a few."""
    pages: list[int] = []

    def counting(name: str) -> None:
        real = getattr(MemoryMetadataStore, name)

        async def counted(store: Any, *arguments: Any) -> Any:
            found = await real(store, *arguments)
            pages.append(len(found.records) if hasattr(found, "records") else 1)
            return found

        monkeypatch.setattr(MemoryMetadataStore, name, counted)

    async def work() -> None:
        await filled(memory)
        costs = []
        for finished in (3, 300):
            async with memory.open() as client:
                producer = await client.producer("orders")
                async with await client.consumer("orders", "billing") as consumer:
                    for _ in range(finished):
                        async with client.transaction() as txn:
                            await producer.send(b"x", txn=txn)
                        async with client.transaction() as txn:
                            await consumer.ack(await consumer.receive(), txn=txn)
            async with memory.open(transactions={"sweep": False}) as client:
                pages.clear()
                opened = await client.host.segment(SEGMENT)
                await opened.buffer.max_read_position()
                subscribed = await client.host.subscription("topic://public/default/orders", "billing", SEGMENT)
                await subscribed.pending_acks.recover()
                costs.append((len(pages), sum(pages)))
        assert costs[0] == costs[1]

    for name in ("get", "scan", "scan_index"):
        counting(name)
    memory.run(work())


async def test_committed_acknowledgments_that_nobody_settled(stores: Stores) -> None:
    """The committing process died before its acks took effect: the next process that opens the subscription
    applies them.
    """
    alone: dict[str, dict[str, object]] = {"transactions": {"sweep": False}}
    async with stores.open(**alone) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2", b"3"])
        await producer.send_many([b"4", b"5"])
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(5)]
        txn = client.transaction()
        await txn.begin()
        await consumer.ack(received[0], received[2], received[3], received[4], txn=txn)
        await consumer.close()
        coordinator = await client.host.coordinator()
        # The decision and nothing else: ``txn.commit`` would begin to settle.
        await coordinator.end(End(txn.id, Action.COMMIT, branches=frozenset({0}), operator=True))
    async with stores.open(**alone) as client:
        assert await client.outcome(txn.id) is State.COMMITTED
        assert await stores.receive(await client.consumer("orders", "billing"), 1) == [b"2"]
        assert (await client.lag("orders", "billing")).messages == 1
