"""Handlers that a consumer runs: in transactions, with failures, stopped and cancelled."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, DeadLetter, Message, Transaction
from txnframework.errors import InvalidInput, TransactionConflict, Unavailable
from txnframework.model.ids import TxnID
from txnframework.model.transactions import Begin, End, OpenQuery, State
from txnframework.model.transactions import Transaction as BegunTransaction
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

KINDS = ["exclusive", "failover", "shared", "key_shared"]
ORDERED = ["exclusive", "failover", "key_shared"]


class Failing(Exception):
    """A handler that fails."""


async def prepared(client: Client, *values: bytes) -> None:
    await client.create_topic("orders")
    await client.create_topic("invoices")
    producer = await client.producer("orders")
    for value in values:
        await producer.send(value, key=value[:1])


async def joined(client: Client, kind: str = "exclusive", **options: Any) -> Consumer:
    return await client.consumer("orders", "billing", type=kind, start="earliest", **options)


async def lag(stores: Stores) -> int:
    """Return the lag once every ended transaction has taken effect: closing a client waits for those that it ended."""
    async with stores.open() as client:
        await client.maintain()
        return (await client.lag("orders", "billing")).messages


async def moved(client: Client) -> None:
    """Wait for a dead letter."""
    async with await client.consumer("orders-billing-DLQ", "test", start="earliest") as letters:
        await letters.receive()


@pytest.mark.parametrize("kind", KINDS)
async def test_each_message_in_a_transaction(stores: Stores, kind: str) -> None:
    """What the handler sent and the acknowledgment are committed together, one message after the other."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"b1", b"a2")
        invoices = await client.producer("invoices")
        async with await joined(client, kind) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                await invoices.send(b"for " + (order.value or b""), txn=txn)
                if order.value == b"a2":
                    consumer.stop()

            await consumer.run(bill)
        assert await stores.read(client, "invoices") == [b"for a1", b"for b1", b"for a2"]
    assert await lag(stores) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_fails(stores: Stores, kind: str) -> None:
    """Nothing of the failed attempt remains, the message comes again, and an order is kept."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2", b"b1", b"a3")
        invoices = await client.producer("invoices")
        attempts: list[tuple[bytes | None, int]] = []
        async with await joined(client, kind) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                attempts.append((order.value, order.redelivery_count))
                await invoices.send(order.value, txn=txn)
                if order.value == b"a1" and order.redelivery_count < 2:
                    raise Failing
                if len({value for value, _ in attempts}) == 4 and (b"a1", 2) in attempts:
                    consumer.stop()

            await consumer.run(bill, concurrency=3)
        sent = await stores.read(client, "invoices")
        assert sorted(value for value in sent if value) == [b"a1", b"a2", b"a3", b"b1"]
        assert [one for one in attempts if one[0] == b"a1"] == [(b"a1", 0), (b"a1", 1), (b"a1", 2)]
        if kind in ORDERED:
            assert [value for value in sent if value[:1] == b"a"] == [b"a1", b"a2", b"a3"]
    assert await lag(stores) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_poison_message_among_others(stores: Stores, kind: str) -> None:
    """Its batch fails, and the others are handled without it; it alone becomes a dead letter."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2", b"a3", b"a4")
        await client.create_topic("orders-billing-DLQ")
        handled: list[bytes | None] = []
        batches: list[int] = []
        done = asyncio.Event()
        async with await joined(client, kind, dead_letter=DeadLetter(redeliveries_max=2)) as consumer:

            async def bill(orders: tuple[Message, ...], txn: Transaction) -> None:
                batches.append(len(orders))
                if any(one.value == b"a2" for one in orders):
                    raise Failing
                handled.extend(one.value for one in orders)
                if len(handled) == 3:
                    done.set()

            await run_ready()
            running = asyncio.ensure_future(consumer.run_batches(bill, messages_max=4))
            await done.wait()
            await moved(client)
            consumer.stop()
            await running
        assert handled == [b"a1", b"a3", b"a4"]
        assert max(batches) > 1
        assert await stores.read(client, "orders-billing-DLQ") == [b"a2"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_temporary_error_is_tried_again(stores: Stores, kind: str) -> None:
    """The same messages together, and no delivery is counted."""
    async with stores.open() as client:
        await prepared(client)
        await (await client.producer("orders")).send_many([b"a1", b"a2"], key=b"a")
        attempts: list[list[tuple[bytes | None, int]]] = []
        async with await joined(client, kind) as consumer:

            async def bill(orders: tuple[Message, ...], txn: Transaction) -> None:
                attempts.append([(one.value, one.redelivery_count) for one in orders])
                if len(attempts) < 3:
                    raise Unavailable("a moment")
                consumer.stop()

            await consumer.run_batches(bill)
        assert attempts == [[(b"a1", 0), (b"a2", 0)]] * 3
    assert await lag(stores) == 0


async def settled_while_paused(client: Client, consumer: Consumer, txn: Transaction) -> None:
    """Let an abort take effect, and the message wait for its redelivery for a moment."""
    consumer.pause()
    await client.settle(txn.id)
    for feed in consumer._segments.feeds.values():
        assert feed.attached is not None
        await feed.attached.dispatch.refresh()
    asyncio.get_running_loop().call_later(0.3, consumer.resume)


Failure = Callable[[TxnID], Exception]


@asynccontextmanager
async def failing_behind_acks(
    client: Client, consumer: Consumer, failing: list[Failure], settles: bool
) -> AsyncIterator[Transaction]:
    """Fail with the errors in ``failing``, one for each transaction, after it has acknowledged."""
    txn = client.transaction()
    try:
        async with txn:
            yield txn
            if failing:
                raise failing.pop()(txn.id)
    except (Failing, TransactionConflict):
        if settles:
            await settled_while_paused(client, consumer, txn)
        raise


@pytest.mark.parametrize("settles", [False, True], ids=["at once", "settled"])
@pytest.mark.parametrize("kind", ORDERED)
async def test_a_commit_that_fails_keeps_the_order(stores: Stores, kind: str, settles: bool) -> None:
    """
    The acknowledgment was recorded and aborted; the message comes again before the later ones, also if the abort has
    taken effect before the loop looks.
    """
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2", b"a3")
        committed: list[bytes | None] = []
        async with await joined(client, kind) as consumer:
            failing: list[Failure] = [lambda txn_id: TransactionConflict(txn_id, "as a test wants it")]
            transaction = partial(failing_behind_acks, client, consumer, failing, settles)

            async def bill(order: Message, txn: Transaction) -> None:
                if not failing:
                    committed.append(order.value)
                if len(committed) == 3:
                    consumer.stop()

            await consumer.run(bill, transaction=transaction, concurrency=2)
        assert committed == [b"a1", b"a2", b"a3"]
    assert await lag(stores) == 0


@pytest.mark.parametrize("settles", [False, True], ids=["at once", "settled"])
@pytest.mark.parametrize("kind", ORDERED)
async def test_a_batch_that_fails_after_its_acknowledgment_keeps_the_order(
    stores: Stores, kind: str, settles: bool
) -> None:
    """Its messages are then handled alone, or come again, before the later ones."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2", b"a3", b"a4", b"a5", b"a6")
        committed: list[bytes | None] = []
        async with await joined(client, kind) as consumer:
            failing: list[Failure] = [lambda _: Failing()]
            transaction = partial(failing_behind_acks, client, consumer, failing, settles)

            async def bill(orders: tuple[Message, ...], txn: Transaction) -> None:
                if not failing:
                    committed.extend(order.value for order in orders)
                if len(committed) == 6:
                    consumer.stop()

            await consumer.run_batches(bill, messages_max=2, transaction=transaction, concurrency=3)
        assert committed == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]
    assert await lag(stores) == 0


@dataclass(frozen=True)
class Work:
    txn: Transaction
    number: int


async def test_a_transaction_of_the_callers_own(stores: Stores) -> None:
    """What the context manager yields is what the handler gets; the transaction may be an attribute of it."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2")
        numbers: list[int] = []

        @asynccontextmanager
        async def opened() -> AsyncIterator[Work]:
            async with client.transaction(timeout_ms=60_000) as txn:
                yield Work(txn, len(numbers))

        async with await joined(client) as consumer:

            async def bill(order: Message, given: Work) -> None:
                numbers.append(given.number)
                if len(numbers) == 2:
                    consumer.stop()

            await consumer.run(bill, transaction=opened)
        assert numbers == [0, 1]
    assert await lag(stores) == 0


async def test_without_transactions(stores: Stores) -> None:
    """Acknowledged after the handler, and not if it fails."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2")
        handled: list[tuple[bytes | None, int]] = []
        async with await joined(client) as consumer:

            async def bill(order: Message, txn: None) -> None:
                handled.append((order.value, order.redelivery_count))
                if handled == [(b"a1", 0)]:
                    raise Failing
                if order.value == b"a2":
                    consumer.stop()

            await consumer.run(bill, transactional=False)
        assert handled == [(b"a1", 0), (b"a1", 1), (b"a2", 0)]
    assert await lag(stores) == 0


async def test_redelivery_is_delayed_more_and_more(memory: Stores) -> None:
    """Between half of the delay and the whole; with an order, later messages wait as well."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open(subscriptions={"redelivery_delay_ms": 1_000}) as client:
        await prepared(client, b"a1", b"a2")
        times: list[int] = []
        async with await joined(client) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                assert order.value == b"a1"
                times.append(clock.now_ms())
                raise Failing

            running = asyncio.ensure_future(consumer.run(bill, redelivery_delay_ms_max=4_000))
            await clock.advance(20_000)
            consumer.stop()
            await running
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        for wait, longest in zip(waits, [1_000, 2_000, 4_000, 4_000], strict=False):
            assert longest // 2 <= wait <= longest
        assert len(waits) >= 4


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_stopping_waits_for_handlers_for_a_while(memory: Stores, kind: str) -> None:
    """Then they are cancelled, their transactions are aborted, and their messages come again uncounted."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await prepared(client, b"a1", b"b1", b"c1")
        async with await joined(client, kind) as consumer:
            begun: list[Message] = []
            cancelled: list[Message] = []

            async def bill(order: Message, txn: Transaction) -> None:
                begun.append(order)
                try:
                    await clock.sleep_until(clock.now_ms() + (1_000 if len(begun) == 1 else 60_000))
                except asyncio.CancelledError:
                    cancelled.append(order)
                    raise

            running = asyncio.ensure_future(consumer.run(bill, concurrency=2, drain_timeout_ms=5_000))
            await run_ready()
            consumer.stop()
            await clock.advance(4_999)
            assert not running.done()
            await clock.advance(1)
            await running
            finished = {one.value for one in begun} - {one.value for one in cancelled}
            assert finished == {b"a1"}
            rest = [await consumer.receive(timeout_ms=0) for _ in range(2)]
            assert sorted((one.value, one.redelivery_count) for one in rest) == [(b"b1", 0), (b"c1", 0)]


@pytest.mark.parametrize("kind", KINDS)
async def test_no_handler_begins_after_a_stop(stores: Stores, kind: str) -> None:
    """What was received and not begun comes again uncounted, in its order."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"a2", b"a3")
        begun: list[bytes | None] = []
        async with await joined(client, kind) as consumer:
            # So that the first one is handled alone, in front of a batch of the others.
            await consumer.receive()
            await consumer.redeliver_unacknowledged()
            await run_ready()

            async def bill(orders: tuple[Message, ...], txn: Transaction) -> None:
                begun.extend(order.value for order in orders)
                consumer.stop()

            await consumer.run_batches(bill)
            assert begun == [b"a1"]
            rest = [await consumer.receive() for _ in range(2)]
            assert [(one.value, one.redelivery_count) for one in rest] == [(b"a2", 0), (b"a3", 0)]


async def test_a_second_stop_does_not_wait(memory: Stores) -> None:
    """Its handlers are cancelled at once."""
    memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await prepared(client, b"a1")
        async with await joined(client) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                await asyncio.Event().wait()

            running = asyncio.ensure_future(consumer.run(bill))
            await run_ready()
            consumer.stop()
            await run_ready()
            assert not running.done()
            consumer.stop()
            await running
            assert await memory.receive(consumer, 1) == [b"a1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_is_cancelled(stores: Stores, kind: str) -> None:
    """Its transactions are aborted, and the consumer gets the messages again."""
    async with stores.open() as client:
        await prepared(client, b"a1", b"b1")
        invoices = await client.producer("invoices")
        async with await joined(client, kind) as consumer:
            begun = asyncio.Event()

            async def bill(order: Message, txn: Transaction) -> None:
                await invoices.send(order.value, txn=txn)
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.ensure_future(consumer.run(bill))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert sorted(await stores.receive(consumer, 2)) == [b"a1", b"b1"]
        assert await stores.read(client, "invoices") == []


async def test_stopping_by_a_signal(memory: Stores) -> None:
    """Only while it runs; the earlier handler of the signal is restored."""
    async with memory.open() as client:
        await prepared(client, b"a1")
        before = signal.getsignal(signal.SIGTERM)
        async with await joined(client) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                os.kill(os.getpid(), signal.SIGTERM)

            await consumer.run(bill, stop_on_signals=(signal.SIGTERM, signal.SIGINT))
        assert signal.getsignal(signal.SIGTERM) is before
    assert await lag(memory) == 0


async def test_a_pause_during_a_run(memory: Stores) -> None:
    """No handler begins until the consumer is resumed."""
    async with memory.open() as client:
        await prepared(client, b"a1", b"a2")
        handled: list[bytes | None] = []
        async with await joined(client) as consumer:

            async def bill(order: Message, txn: Transaction) -> None:
                handled.append(order.value)
                consumer.pause() if len(handled) == 1 else consumer.stop()

            running = asyncio.ensure_future(consumer.run(bill))
            for _ in range(10):
                await run_ready()
            assert handled == [b"a1"]
            consumer.resume()
            await running
        assert handled == [b"a1", b"a2"]


async def test_closing_ends_a_run(memory: Stores) -> None:
    """As it ends an iteration; what was not acknowledged goes to the next consumer."""
    async with memory.open() as client:
        await prepared(client, b"a1")
        consumer = await joined(client)
        begun = asyncio.Event()

        async def bill(order: Message, txn: Transaction) -> None:
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.ensure_future(consumer.run(bill, concurrency=2))
        await begun.wait()
        await consumer.close()
        await running
        async with await joined(client) as consumer:
            assert await memory.receive(consumer, 1) == [b"a1"]


async def test_a_child_waits_for_its_parent(memory: Stores) -> None:
    """With an order, a message of a parent that fails is not overtaken by the same key in a child."""
    memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await prepared(client, b"a1")
        await client.split("orders", 0)
        producer = await client.producer("orders")
        await producer.send_many([b"a2", b"a3"], key=b"a")
        for kind in ORDERED:
            handled: list[bytes | None] = []
            async with await client.consumer("orders", kind, type=kind, start="earliest") as consumer:

                async def bill(order: Message, txn: Transaction, handled: list[bytes | None] = handled) -> None:
                    if order.value == b"a1" and order.redelivery_count < 3:
                        raise Failing
                    handled.append(order.value)
                    if len(handled) == 3:
                        consumer.stop()

                await consumer.run(bill, concurrency=4)
            assert handled == [b"a1", b"a2", b"a3"]


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("method", ["run", "run_batches"])
async def test_a_handler_without_async(memory: Stores, method: str, transactional: bool) -> None:
    """The run ends at the first message, which neither becomes a dead letter nor counts as delivered."""

    def nothing(_received: object, _txn: object) -> None:
        pass

    async with memory.open() as client:
        await prepared(client, b"a1")
        async with await joined(client, dead_letter=DeadLetter(redeliveries_max=0)) as consumer:
            with pytest.raises(InvalidInput, match="nothing returned NoneType, which cannot be awaited"):
                await getattr(consumer, method)(nothing, transactional=transactional)
            message = await consumer.receive()
            assert (message.value, message.redelivery_count) == (b"a1", 0)


async def test_what_run_refuses(memory: Stores) -> None:
    """Each in a sentence, before anything is received."""

    async def nothing(_message: object, _txn: object) -> None:
        pass

    async with memory.open() as client:
        await prepared(client, b"a1")
        async with await joined(client) as consumer:
            for options in (
                {"concurrency": 0},
                {"retries_max": -1},
                {"drain_timeout_ms": -1},
                {"redelivery_delay_ms_max": 1.5},
                {"stop_on_signals": ("SIGTERM",)},
                {"stop_on_signals": 15},
                {"timeout": 1},
                {"transactional": False, "transaction": client.transaction},
            ):
                with pytest.raises(InvalidInput):
                    await consumer.run(nothing, **options)  # type: ignore[call-overload]
            for handler, reason in (
                (None, "a function of a message, or of a message and a transaction"),
                (lambda: None, "accepts neither: too many positional arguments"),
                (lambda _first, _second, _third: None, "accepts neither: missing a required argument"),
            ):
                for run in (consumer.run, consumer.run_batches):
                    with pytest.raises(InvalidInput, match=reason):
                        await run(handler)  # type: ignore[call-overload]
            running = asyncio.ensure_future(consumer.run(nothing))
            await run_ready()
            with pytest.raises(InvalidInput, match="already"):
                await consumer.run(nothing)
            consumer.stop()
            await running
            consumer.stop()


async def test_the_next_transaction_begins_beside_a_commit(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit ends only after the next begin was called: the loop does not call one after the other."""
    async with memory.open() as client:
        await prepared(client, b"a1", b"a2", b"a3")
        coordinator = await client.host.coordinator()
        begin, end = coordinator.begin, coordinator.end
        begins = 0
        changed = asyncio.Event()

        async def count_and_begin(request: Begin) -> BegunTransaction:
            nonlocal begins
            begins += 1
            changed.set()
            return await begin(request)

        async def wait_and_end(request: End) -> BegunTransaction:
            while begins < min(3, len(handled) + 1):
                changed.clear()
                await changed.wait()
            return await end(request)

        monkeypatch.setattr(coordinator, "begin", count_and_begin)
        monkeypatch.setattr(coordinator, "end", wait_and_end)
        handled: list[TxnID] = []
        async with await joined(client) as consumer:

            async def bill(_: Message, txn: Transaction) -> None:
                handled.append(txn.id)
                for earlier in handled[:-1]:
                    assert await client.outcome(earlier) is State.COMMITTED
                if len(handled) == 3:
                    consumer.stop()

            await consumer.run(bill)
        assert begins == len(handled) == 3
    assert await lag(memory) == 0


@pytest.mark.parametrize("cancelled", [False, True], ids=["stopped", "cancelled"])
async def test_a_transaction_that_began_early_and_is_not_used_is_aborted(memory: Stores, cancelled: bool) -> None:
    """The run ends while a message waits, for which a transaction has begun."""
    async with memory.open() as client:
        await prepared(client, b"a1", b"a2", b"a3")
        handled: list[bytes | None] = []
        begun = asyncio.Event()
        async with await joined(client) as consumer:

            async def bill(order: Message, _: Transaction) -> None:
                handled.append(order.value)
                if len(handled) < 2:
                    return
                begun.set()
                if cancelled:
                    await asyncio.Event().wait()
                consumer.stop()

            running = asyncio.ensure_future(consumer.run(bill))
            await begun.wait()
            if cancelled:
                running.cancel()
            await asyncio.wait({running})
            assert handled == [b"a1", b"a2"]
        coordinator = await client.host.coordinator()
        while await coordinator.list_open(OpenQuery()):
            await run_ready()
