"""Handlers that return what is to be sent: it is stored with the acknowledgment, by ``Client.transact``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, DeadLetter, Message, PlannedSend, Producer, Transaction
from txnframework.client._handlers import shared_commits
from txnframework.errors import InvalidInput, OutcomeUnknown, TransactionConflict, TxnFrameworkError, Unavailable
from txnframework.model.ids import TxnID
from txnframework.testing import MemoryStores
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

ORDERED = ["exclusive", "key_shared"]


class Failing(Exception):
    """A handler that fails."""


async def prepared(client: Client, *values: bytes) -> Producer:
    """Create the topics, send orders, and return a producer of invoices."""
    await client.create_topic("orders")
    await client.create_topic("invoices")
    async with await client.producer("orders") as producer:
        for value in values:
            await producer.send(value, key=value[:1])
    return await client.producer("invoices")


async def joined(client: Client, kind: str = "exclusive", **options: Any) -> Consumer:
    return await client.consumer("orders", "billing", type=kind, start="earliest", **options)


async def lag(client: Client) -> int:
    await client.maintain()
    return (await client.lag("orders", "billing")).messages


async def sent(client: Client) -> list[tuple[bytes | None, TxnID | None]]:
    """Return the invoices, each with its transaction."""
    async with await client.reader("invoices") as reader:
        return [(one.value, one.txn_id) async for one in reader]


async def test_each_message_with_what_its_handler_returned(stores: Stores) -> None:
    """One message, several or none, in one transaction with the acknowledgment, in the order of the messages."""
    async with stores.open() as client:
        invoices = await prepared(client, b"a1", b"a2", b"a3", b"a4")
        async with await joined(client) as consumer:

            async def bill(order: Message) -> PlannedSend | Iterable[PlannedSend] | None:
                if order.value == b"a1":
                    return invoices.outgoing(b"for a1")
                if order.value == b"a2":
                    return [invoices.outgoing(b"for a2"), invoices.outgoing(b"copy for a2")]
                if order.value == b"a3":
                    return None
                consumer.stop()
                return (invoices.outgoing(one) for one in (b"for a4",))

            await consumer.run(bill)
            assert await lag(client) == 0
        found = await sent(client)
        assert [value for value, _ in found] == [b"for a1", b"for a2", b"copy for a2", b"for a4"]
        first, second, copy, last = (txn for _, txn in found)
        assert second == copy
        assert len({first, second, last}) == 3


async def test_a_batch_in_one_transaction(stores: Stores) -> None:
    """What the handler returns for several messages is one transaction with their acknowledgments."""
    async with stores.open() as client:
        invoices = await prepared(client)
        async with await client.producer("orders") as orders:
            await orders.send_many([b"%d" % number for number in range(20)])
        async with await joined(client) as consumer:
            batches: list[int] = []

            async def bill(orders: tuple[Message, ...]) -> list[PlannedSend]:
                batches.append(len(orders))
                if sum(batches) == 20:
                    consumer.stop()
                return [invoices.outgoing(one.value, key=b"ada") for one in orders]

            await consumer.run_batches(bill)
            assert await lag(client) == 0
        found = await sent(client)
        assert [value for value, _ in found] == [b"%d" % number for number in range(20)]
        assert len({txn for _, txn in found}) == len(batches) < 20


@pytest.mark.parametrize("kind", [*ORDERED, "shared"])
async def test_a_handler_that_fails(memory: Stores, kind: str) -> None:
    """Its message comes again, in its order, or is a dead letter; in a batch, the others are handled without it."""
    async with memory.open() as client:
        invoices = await prepared(client, b"a1", b"a2", b"b1", b"a3", b"c1")
        await client.create_topic("orders-billing-DLQ")
        failed: list[tuple[bytes | None, int]] = []
        async with await joined(client, kind, dead_letter=DeadLetter(redeliveries_max=2)) as consumer:

            async def bill(orders: tuple[Message, ...]) -> Iterable[PlannedSend]:
                for one in orders:
                    if one.value == b"c1" or (one.value == b"a1" and one.redelivery_count < 2):
                        failed.append((one.value, one.redelivery_count))
                        raise Failing
                return [invoices.outgoing(one.value) for one in orders]

            await run_ready()
            running = asyncio.ensure_future(consumer.run_batches(bill, messages_max=3, concurrency=2))
            async with await client.consumer("orders-billing-DLQ", "test", start="earliest") as letters:
                assert (await letters.receive()).value == b"c1"
            async with await client.consumer("invoices", "test", start="earliest") as received:
                values = await memory.receive(received, 4)
            consumer.stop()
            await running
            assert await lag(client) == 0
        assert sorted(values) == [b"a1", b"a2", b"a3", b"b1"]
        if kind in ORDERED:
            assert [one for one in values if one[:1] == b"a"] == [b"a1", b"a2", b"a3"]
        assert {(b"a1", 0), (b"a1", 1), (b"c1", 2)} <= {*failed}


@pytest.mark.parametrize("kind", ORDERED)
async def test_a_message_that_another_transaction_acknowledged(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What was returned is not sent, and later messages wait; after the other was aborted, each is handled in order."""
    transact = shared_commits.transact_planned
    refused = asyncio.Event()

    async def note_conflict(*arguments: Any) -> object:
        try:
            return await transact(*arguments)
        except TransactionConflict:
            refused.set()
            raise

    monkeypatch.setattr(shared_commits, "transact_planned", note_conflict)

    async with stores.open() as client:
        invoices = await prepared(client, b"a1", b"a2", b"a3")
        calls: list[bytes | None] = []
        async with await joined(client, kind) as consumer:
            holder = client.transaction()

            async def bill(order: Message) -> PlannedSend:
                calls.append(order.value)
                if len(calls) == 1:
                    await holder.begin()
                    await consumer.ack(order, txn=holder)
                if order.value == b"a3":
                    consumer.stop()
                return invoices.outgoing(order.value)

            running = asyncio.ensure_future(consumer.run(bill, concurrency=3))
            await refused.wait()
            assert {*calls} == {b"a1"}
            await holder.abort()
            await running
            assert await lag(client) == 0
        assert calls[2:] == [b"a1"] * (len(calls) - 4) + [b"a2", b"a3"]
        assert [value for value, _ in await sent(client)] == [b"a1", b"a2", b"a3"]


@pytest.mark.parametrize("carried_out", [False, True], ids=["refused", "carried out"])
async def test_a_commit_without_an_answer(stores: Stores, monkeypatch: pytest.MonkeyPatch, carried_out: bool) -> None:
    """The handler is called again only if nothing took effect, and no delivery counts."""
    transact = shared_commits.transact_planned
    errors = 0

    async def fail_once(*arguments: Any) -> object:
        nonlocal errors
        errors += 1
        if errors > 1:
            return await transact(*arguments)
        if carried_out:
            await transact(*arguments)
            raise OutcomeUnknown("the answer was lost")
        raise Unavailable("a moment")

    async with stores.open() as client:
        invoices = await prepared(client, b"a1", b"a2")
        calls: list[tuple[bytes | None, int]] = []
        async with await joined(client) as consumer:

            async def bill(order: Message) -> PlannedSend:
                calls.append((order.value, order.redelivery_count))
                if order.value == b"a2":
                    consumer.stop()
                return invoices.outgoing(order.value)

            with monkeypatch.context() as patches:
                patches.setattr(shared_commits, "transact_planned", fail_once)
                await consumer.run(bill)
            assert await lag(client) == 0
        assert calls == [(b"a1", 0)] * (1 if carried_out else 2) + [(b"a2", 0)]
        assert [value for value, _ in await sent(client)] == [b"a1", b"a2"]


async def test_a_run_that_is_cancelled(stores: Stores) -> None:
    """Nothing of a handler that has not returned takes effect, and its message comes again."""
    async with stores.open() as client:
        invoices = await prepared(client, b"a1")
        async with await joined(client) as consumer:
            begun = asyncio.Event()

            async def bill(order: Message) -> PlannedSend:
                found = invoices.outgoing(order.value)
                begun.set()
                await asyncio.Event().wait()
                return found

            running = asyncio.ensure_future(consumer.run(bill))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await stores.receive(consumer, 1) == [b"a1"]
        assert await sent(client) == []


async def test_without_transactions(memory: Stores) -> None:
    """A handler of the messages alone is called, and each message acknowledged after it."""
    async with memory.open() as client:
        await prepared(client, b"a1", b"a2")
        handled: list[bytes | None] = []
        async with await joined(client) as consumer:

            async def mail(order: Message) -> None:
                handled.append(order.value)
                if len(handled) == 3:
                    consumer.stop()
                if handled == [b"a1"]:
                    raise Failing

            await consumer.run(mail, transactional=False)
            assert await lag(client) == 0
        assert handled == [b"a1", b"a1", b"a2"]


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("for a1", "bill returned str: a handler returns what is to be sent"),
        (b"", "bill returned bytes: "),
        ({}, "bill returned dict: "),
        (7, r"bill returned int: a handler returns what is to be sent: None, producer.outgoing\(...\), or several"),
        ([b"for a1"], "bill returned bytes in list: "),
    ],
)
async def test_what_a_handler_must_not_return(memory: Stores, returned: object, reason: str) -> None:
    """The run ends with a sentence, and the message is not at fault: no delivery of it counts."""
    async with memory.open() as client:
        await prepared(client, b"a1")
        async with await joined(client, dead_letter=DeadLetter(redeliveries_max=0)) as consumer:

            async def bill(_order: Any) -> Any:
                return returned

            for run in (consumer.run, consumer.run_batches):
                with pytest.raises(InvalidInput, match=reason):
                    await run(bill)
            message = await consumer.receive()
            assert (message.value, message.redelivery_count) == (b"a1", 0)


async def test_messages_that_would_not_be_sent(memory: Stores) -> None:
    """Returned by a handler with a transaction or without any, by a generator, or with the option ``transaction``."""
    async with memory.open() as client:
        invoices = await prepared(client, b"a1")

        async def with_txn(_order: Message, _txn: Transaction | None) -> PlannedSend:
            return invoices.outgoing(b"lost")

        async def alone(_order: Any) -> Any:
            return [invoices.outgoing(b"lost")]

        async def generator(_order: Message) -> AsyncIterator[PlannedSend]:
            yield invoices.outgoing(b"lost")

        async with await joined(client) as consumer:
            run: Any = consumer.run
            for handler, options, reason in (
                (with_txn, {}, "with_txn returned what is to be sent, and it is not used here"),
                (with_txn, {"transactional": False}, "with_txn returned what is to be sent"),
                (alone, {"transactional": False}, "alone returned what is to be sent"),
                (alone, {"transaction": client.transaction}, "alone has no second argument"),
                (generator, {}, "async_generator, which cannot be awaited: .* 'async def' without 'yield'"),
            ):
                with pytest.raises(InvalidInput, match=reason):
                    await run(handler, **options)
            message = await consumer.receive()
            assert (message.value, message.redelivery_count) == (b"a1", 0)
        assert await sent(client) == []


async def test_an_operation_that_was_used_already(memory: Stores) -> None:
    """It cannot be sent again: the message fails, as with other errors of the handler."""
    async with memory.open() as client:
        invoices = await prepared(client, b"a1", b"b1")
        once = invoices.outgoing(b"once")
        await client.create_topic("orders-billing-DLQ")
        async with await joined(client, "shared", dead_letter=DeadLetter(redeliveries_max=0)) as consumer:

            async def bill(order: Message) -> PlannedSend:
                return once if order.value == b"a1" else invoices.outgoing(order.value)

            await client.transact(once)
            running = asyncio.ensure_future(consumer.run(bill))
            async with await client.consumer("orders-billing-DLQ", "test", start="earliest") as letters:
                assert (await letters.receive()).value == b"a1"
            consumer.stop()
            await running
        assert [value for value, _ in await sent(client)] == [b"once", b"b1"]


def test_a_blocking_handler(stores: Stores) -> None:
    """It is a plain function, and may be a generator; its code runs in a thread."""
    with stores.open_blocking() as client:
        for topic in ("orders", "invoices"):
            client.create_topic(topic)
        orders, invoices = client.producer("orders"), client.producer("invoices")
        orders.send_many([b"1", b"2", b"3"])
        with client.consumer("orders", "billing", start="earliest") as consumer:
            seen: list[bytes | None] = []

            def bill(order: Message) -> Iterable[PlannedSend]:
                if order.value == b"2":
                    assert client.last_message("invoices") is not None  # a call that waits is for threads only
                seen.append(order.value)
                yield invoices.outgoing(b"for " + (order.value or b""))
                if seen == [b"1"]:
                    raise Failing
                if order.value == b"3":
                    consumer.stop()
                yield invoices.outgoing(b"copy")

            consumer.run(bill)
            orders.send(b"4")

            def bill_all(received: tuple[Message, ...]) -> PlannedSend:
                consumer.stop()
                return invoices.outgoing(received[0].value)

            consumer.run_batches(bill_all)
            orders.send(b"5")

            def wrong(_received: Message) -> Any:
                return "for 5"

            with pytest.raises(InvalidInput, match="wrong returned str: a handler returns what is to be sent"):
                consumer.run(wrong)

            def mail(_received: Message) -> None:
                consumer.stop()

            consumer.run(mail, transactional=False)
        assert seen == [b"1", b"1", b"2", b"3"]
        with client.reader("invoices") as reader:
            assert [one.value for one in reader] == [b"for 1", b"copy", b"for 2", b"copy", b"for 3", b"copy", b"4"]


@pytest.mark.parametrize("kind", [*ORDERED, "shared"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_a_step_whose_reply_is_lost(
    txn_stores: MemoryStores, monkeypatch: pytest.MonkeyPatch, is_stored: bool, kind: str
) -> None:
    """A message is not handled again if the step was stored. Later ones of its key wait until that is known."""
    transact = shared_commits.transact_planned
    failed = asyncio.Event()

    async def note_failure(*arguments: Any) -> object:
        try:
            return await transact(*arguments)
        except TxnFrameworkError:
            failed.set()
            raise

    monkeypatch.setattr(shared_commits, "transact_planned", note_failure)

    async def work() -> None:
        async with txn_stores.open() as client:
            invoices = await prepared(client, b"a1", b"a2", b"a3")
            calls: list[bytes | None] = []
            async with await joined(client, kind) as consumer:

                async def bill(order: Message) -> PlannedSend:
                    calls.append(order.value)
                    if len(calls) == 1:
                        txn_stores.lose_next_commit_reply()
                        if not is_stored:
                            away.enter_context(txn_stores.unavailable())
                    return invoices.outgoing(order.value)

                with ExitStack() as away:
                    running = asyncio.ensure_future(consumer.run(bill))
                    await failed.wait()
                    if is_stored and kind in ORDERED:
                        assert calls == [b"a1"]
                    txn_stores.restore()
                    while await lag(client):
                        await txn_stores.advance(100)
                    consumer.stop()
                    await running
            found = [value for value, _ in await sent(client)]
            assert (found if kind in ORDERED else sorted(found)) == [b"a1", b"a2", b"a3"]
            if is_stored:
                assert calls == [b"a1", b"a2", b"a3"]

    asyncio.run(asyncio.wait_for(work(), 60))


@dataclass
class Gate:
    """Holds transactions of handlers until it is opened, and refuses the first ``refused`` ones."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    refused: int = 0

    async def pass_through(self, transact: Callable[..., Awaitable[object]], *arguments: Any) -> object:
        self.held += 1
        await self.opened.wait()
        if self.refused:
            self.refused -= 1
            raise OutcomeUnknown("by the test")
        return await transact(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate()
    for name in ("transact_planned", "transact_jointly"):
        monkeypatch.setattr(shared_commits, name, partial(found.pass_through, getattr(shared_commits, name)))
    return found


@pytest.mark.parametrize("kind", [*ORDERED, "shared"])
async def test_the_next_handler_during_a_commit(memory: Stores, gate: Gate, kind: str) -> None:
    """It is called if the order allows it. Never do two run at a time; what they returned is one transaction."""
    async with memory.open() as client:
        invoices = await prepared(client, b"a1", b"a2", b"b1", b"c1")
        calls: list[bytes | None] = []
        running: set[bytes | None] = set()
        async with await joined(client, kind) as consumer:

            async def bill(order: Message) -> PlannedSend:
                running.add(order.value)
                assert len(running) == 1
                await asyncio.sleep(0)
                running.remove(order.value)
                calls.append(order.value)
                if len(calls) == 4:
                    consumer.stop()
                return invoices.outgoing(order.value)

            run = asyncio.ensure_future(consumer.run(bill))
            await run_ready()
            expected = {
                "exclusive": [b"a1"],
                "key_shared": [b"a1", b"b1", b"c1"],
                "shared": [b"a1", b"a2", b"b1", b"c1"],
            }
            assert calls == expected[kind]
            assert gate.held == 1
            assert await sent(client) == []
            gate.opened.set()
            await run
            assert await lag(client) == 0
        found = await sent(client)
        assert sorted(value or b"" for value, _ in found) == [b"a1", b"a2", b"b1", b"c1"]
        if kind == "shared":
            assert len({txn for _, txn in found[1:]}) == 1


async def test_results_that_wait(memory: Stores, gate: Gate) -> None:
    """No more than 16 handlers have returned without a commit; ``stop`` waits for their commits."""
    async with memory.open() as client:
        invoices = await prepared(client, *(b"%d" % number for number in range(30)))
        calls: list[bytes | None] = []
        async with await joined(client, "shared") as consumer:

            async def bill(order: Message) -> PlannedSend:
                calls.append(order.value)
                return invoices.outgoing(order.value)

            run = asyncio.ensure_future(consumer.run(bill))
            await run_ready()
            assert len(calls) == 16
            consumer.stop()
            await run_ready()
            assert not run.done()  # it waits for the commits, and calls no handler
            gate.opened.set()
            await run
            assert len(calls) == 16
        assert len(await sent(client)) == 16
        assert await lag(client) == 14


def test_a_commit_that_is_refused(txn_stores: MemoryStores, gate: Gate) -> None:
    """Its handler is called again, when no other one runs."""

    async def work() -> None:
        async with txn_stores.open() as client:
            invoices = await prepared(client, b"a1", b"a2", b"a3")
            gate.refused = 1
            slow, calls = asyncio.Event(), []
            async with await joined(client, "shared") as consumer:

                async def bill(order: Message) -> PlannedSend:
                    calls.append(order.value)
                    if order.value == b"a2":
                        gate.opened.set()
                        await slow.wait()
                    if len(calls) == 4:
                        consumer.stop()
                    return invoices.outgoing(order.value)

                run = asyncio.ensure_future(consumer.run(bill))
                while gate.refused:
                    await run_ready()
                await txn_stores.advance(1_000)
                assert calls == [b"a1", b"a2"]
                slow.set()
                while not run.done():
                    await txn_stores.advance(100)
                await run
                assert sorted(calls) == [b"a1", b"a1", b"a2", b"a3"]
            assert sorted(value or b"" for value, _ in await sent(client)) == [b"a1", b"a2", b"a3"]

    asyncio.run(asyncio.wait_for(work(), 60))
