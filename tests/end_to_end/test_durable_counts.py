"""Delivery counts after restarts, and messages that end their process again and again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, DeadLetter, Message, Transaction
from txnframework.broker import DurableCounts
from txnframework.errors import Unavailable
from txnframework.model.metadata import KeyRange

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

KINDS = ["exclusive", "failover", "shared", "key_shared"]
LETTERS = "orders-billing-DLQ"
RULE = DeadLetter(redeliveries_max=1)
RECORDS = KeyRange("/deliveries/", "/deliveries0")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a client, leaving the same state as a killed process."""

    async def unavailable(*_: object) -> None:
        raise Unavailable("the process was killed")

    monkeypatch.setattr(DurableCounts, "end", unavailable)


async def prepared(client: Client, *values: bytes) -> None:
    await client.create_topic("orders")
    await client.create_topic(LETTERS)
    await client.subscribe("orders", "billing", start="earliest")
    await client.subscribe(LETTERS, "people", start="earliest")
    producer = await client.producer("orders")
    await producer.send_many(values, key=b"one key")


async def letter(client: Client) -> bytes | None:
    """Wait for a dead letter, and return its content."""
    async with await client.consumer(LETTERS, "people") as letters:
        return (await letters.receive(timeout_ms=60_000)).value


@pytest.mark.parametrize("kind", KINDS)
async def test_counts_after_a_restart(stores: Stores, kind: str) -> None:
    """Counts continue after a restart, and the record is removed with its last count."""
    async with stores.open() as client:
        await prepared(client, b"bad", b"good")
    deliveries = []
    for _ in range(2):
        async with (
            stores.open() as client,
            await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
        ):
            one = await consumer.receive(timeout_ms=60_000)
            deliveries.append((one.value, one.redelivery_count))
    assert deliveries == [(b"bad", 0), (b"bad", 1)]
    async with (
        stores.open() as client,
        await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
    ):
        good = await consumer.receive(timeout_ms=60_000)
        assert (good.value, good.redelivery_count) == (b"good", 0)
        await consumer.ack(good)
        assert await letter(client) == b"bad"
        await client.maintain()
    async with stores.open() as client:
        # The consumer may have left before it saw that the message was moved; the next one sees it.
        await (await client.consumer("orders", "billing", type=kind, dead_letter=RULE)).close()
        assert not (await client.host.metadata.scan(RECORDS, 10)).records


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_ends_its_process(stores: Stores, killed: None, kind: str) -> None:
    """The first death is not recorded; later deliveries count each death, until the message becomes a dead letter."""
    async with stores.open() as client:
        await prepared(client, b"bad", b"good")
    deliveries = []
    for _ in range(4):
        async with (
            stores.open() as client,
            await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
        ):
            one = await consumer.receive(timeout_ms=60_000)
            deliveries.append((one.value, one.redelivery_count))
    assert deliveries == [(b"bad", 0), (b"bad", 0), (b"bad", 0), (b"bad", 1)]
    async with (
        stores.open() as client,
        await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
    ):
        one = await consumer.receive(timeout_ms=60_000)
        assert (one.value, one.redelivery_count) == (b"good", 0)
        assert await letter(client) == b"bad"


@pytest.mark.parametrize("kind", KINDS)
async def test_its_neighbours_in_a_batch(stores: Stores, killed: None, kind: str) -> None:
    """After the second death, messages of a batch are delivered one by one, and its other messages are not counted."""
    async with stores.open() as client:
        await prepared(client, b"first", b"bad", b"last")
    handled: list[tuple[bytes | None, int]] = []
    batches: list[list[bytes | None]] = []
    for _ in range(5):
        async with (
            stores.open() as client,
            await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
        ):
            while True:
                batch = await consumer.receive_many(messages_max=10, timeout_ms=60_000)
                batches.append([one.value for one in batch])
                if any(one.value == b"bad" for one in batch):
                    break  # the process dies
                handled += [(one.value, one.redelivery_count) for one in batch]
                await consumer.ack(*batch)
    async with (
        stores.open() as client,
        await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
    ):
        one = await consumer.receive(timeout_ms=60_000)
        handled.append((one.value, one.redelivery_count))
        assert await letter(client) == b"bad"
    assert handled == [(b"first", 0), (b"last", 0)]
    assert batches[:3] == [[b"first", b"bad", b"last"]] * 2 + [[b"first"]]


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_a_run_with_several_handlers(stores: Stores, killed: None, kind: str) -> None:
    """While the record names suspects, the run handles one message at a time."""
    async with stores.open() as client:
        await prepared(client)
        producer = await client.producer("orders")
        for number in range(6):
            await producer.send(b"bad" if number == 3 else b"good", key=b"%d" % number)
    counts: list[tuple[bytes | None, int]] = []
    for attempt in range(7):
        async with (
            stores.open() as client,
            await client.consumer("orders", "billing", type=kind, dead_letter=RULE) as consumer,
        ):
            dying = asyncio.Event()

            async def bill(order: Message, txn: Transaction, dying: asyncio.Event = dying) -> None:
                counts.append((order.value, order.redelivery_count))
                if order.value == b"bad":
                    dying.set()
                if attempt < 2 or order.value == b"bad":  # noqa: B023
                    await asyncio.Event().wait()

            running = asyncio.ensure_future(consumer.run(bill, concurrency=6))
            if attempt < 5:
                await dying.wait()
            else:
                assert attempt == 5
                assert await letter(client) == b"bad"
            running.cancel()
            await asyncio.wait({running})
            if attempt == 5:
                break
    assert {count for value, count in counts if value == b"good"} == {0}
    assert max(count for value, count in counts if value == b"bad") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_was_replaced_and_lives(stores: Stores, kind: str) -> None:
    """A running process loses its lease to a later process of the same consumer name while it handles a message.

    However often that happens, the delivery does not count, even if no redelivery is allowed.
    """

    async def until_known_to_live(client: Client) -> None:
        """Return when no dispatch is presumed to have ended with its process."""
        for _ in range(10_000):
            if b'"presumed"' not in (await client.host.metadata.scan(RECORDS, 10)).records[0].value:
                return
            await asyncio.sleep(0)
        pytest.fail("the process never said that it lives")

    rule = DeadLetter(redeliveries_max=0)
    earlier: AsyncExitStack | None = None
    for attempt in range(4):
        async with AsyncExitStack() as opening:
            client = await opening.enter_async_context(stores.open())
            if not attempt:
                await prepared(client, b"slow")
            one = client.consumer("orders", "billing", type=kind, name="worker", dead_letter=rule)
            consumer = await opening.enter_async_context(one)
            message = await consumer.receive(timeout_ms=10_000)
            assert (message.value, message.redelivery_count) == (b"slow", 0)
            await until_known_to_live(client)
            if earlier is not None:
                await earlier.aclose()
            if attempt == 3:
                await consumer.ack(message)
            else:
                earlier = opening.pop_all()


async def test_the_record_goes_with_the_subscription(memory: Stores, killed: None) -> None:
    """A subscription that is created again does not begin with the counts of the earlier one."""
    async with memory.open() as client:
        await prepared(client, b"bad")
        async with await client.consumer("orders", "billing", dead_letter=RULE) as consumer:
            await consumer.receive()
        assert len((await client.host.metadata.scan(RECORDS, 10)).records) == 1
        await client.unsubscribe("orders", "billing")
        assert not (await client.host.metadata.scan(RECORDS, 10)).records


async def test_receiving_waits_for_the_record(memory: Stores) -> None:
    """While the store is away, no message is received for the second time."""
    async with memory.open() as client:
        await prepared(client, b"bad")
        async with await client.consumer("orders", "billing", dead_letter=RULE) as consumer:
            await consumer.nack(await consumer.receive())
            await asyncio.sleep(0)
            refuse = [True]
            put = client.host.metadata.put
            waiting = asyncio.Event()

            async def refused(write: object) -> object:
                if refuse and write.key.path.startswith("/deliveries/"):  # type: ignore[attr-defined]
                    waiting.set()
                    raise Unavailable("the store is away")
                return await put(write)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(consumer._segments.feeds.popitem()[1].counting._store, "put", refused)
                receiving = asyncio.ensure_future(consumer.receive())
                await waiting.wait()
                assert not receiving.done()
                refuse.clear()
                assert (await receiving).redelivery_count == 1
