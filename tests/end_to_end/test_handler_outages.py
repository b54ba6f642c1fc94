"""While a database is unavailable, messages of a handler loop wait, and no delivery counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, DeadLetter, Message, Transaction
from txnframework.errors import InvalidInput, Unavailable
from txnframework.model.ids import TxnID
from txnframework.model.transactions import Begin
from txnframework.model.transactions import Transaction as BegunTransaction
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

KINDS = ["exclusive", "failover", "shared", "key_shared"]
OUTAGE_MS = 600_000
VALUES = [b"a0", b"b0", b"a1", b"a2"]


async def prepared(client: Client) -> None:
    for topic in ("orders", "invoices", "orders-billing-DLQ"):
        await client.create_topic(topic)
    producer = await client.producer("orders")
    for value in VALUES:
        await producer.send(value, key=value[:1])


async def assert_all_handled(stores: Stores, client: Client, kind: str, handled: list[Message]) -> None:
    """Assert that each message was handled once, in its order, and that no delivery counted."""
    assert sorted(one.value or b"" for one in handled) == sorted(VALUES)
    assert kind == "shared" or [one.value for one in handled if one.key == b"a"] == [b"a0", b"a1", b"a2"]
    assert {one.redelivery_count for one in handled} == {0}
    assert await stores.read(client, "orders-billing-DLQ") == []
    assert (await client.lag("orders", "billing")).messages == 0


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages of the loop, without exceptions."""
    return [one.getMessage() for one in caplog.records if one.name == "txnframework.client.handlers"]


@pytest.mark.parametrize("method", ["run", "run_batches"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ConnectionRefusedError, asyncio.CancelledError, Unavailable])
def test_the_database_of_the_application_is_away(
    memory: Stores, kind: str, method: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """No handler runs and no delivery counts; the loop goes on by itself. The reason is logged now and then."""
    clock = memory.environment = VirtualEnvironment()

    async def work() -> None:
        async with memory.open() as client:
            await prepared(client)
            handled: list[Message] = []
            attempts: list[int] = []
            is_away = True

            @asynccontextmanager
            async def opened() -> AsyncIterator[Transaction]:
                attempts.append(clock.now_ms())
                if is_away:
                    raise error("there is no pooler")
                async with client.transaction() as txn:
                    yield txn

            async def handle(received: Message | tuple[Message, ...], _txn: Transaction) -> None:
                handled.extend(received if isinstance(received, tuple) else (received,))

            rule = DeadLetter(redeliveries_max=1)
            async with client.consumer("orders", "billing", type=kind, start="earliest", dead_letter=rule) as consumer:
                running = asyncio.ensure_future(getattr(consumer, method)(handle, transaction=opened, concurrency=2))
                await clock.advance(OUTAGE_MS)
                assert handled == []
                assert OUTAGE_MS / 5_000 < len(attempts) < 2 * OUTAGE_MS / 2_000
                said = told(caplog)
                assert 9 <= len(said) <= 11
                assert all("messages wait, and no delivery counts" in one for one in said)
                assert error.__name__ in said[0]
                is_away = False
                await clock.advance(10_000)
                await assert_all_handled(memory, client, kind, handled)
                assert told(caplog)[len(said) :] == ["the handler of subscription billing: messages are handled again"]
                consumer.stop()
                await running

    with caplog.at_level(logging.WARNING):
        memory.run(work())


@pytest.mark.parametrize("takes_transaction", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_transactions_cannot_begin(
    memory: Stores, kind: str, takes_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If transactions cannot begin, nothing of the handler is committed, and no delivery counts."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await prepared(client)
        invoices = await client.producer("invoices")
        coordinator = await client.host.coordinator()
        begin = coordinator.begin
        is_away = True
        handled: dict[bytes | None, Message] = {}

        async def begin_or_fail(request: Begin) -> BegunTransaction:
            if is_away:
                raise Unavailable("away")
            return await begin(request)

        async def refuse_one_step() -> TxnID:
            raise Unavailable("away")

        monkeypatch.setattr(coordinator, "begin", begin_or_fail)
        monkeypatch.setattr(coordinator, "reserve_id", refuse_one_step)

        async def in_transaction(order: Message, txn: Transaction) -> None:
            handled[order.value] = order
            await invoices.send(order.value, txn=txn)

        async def alone(order: Message) -> object:
            handled[order.value] = order
            return invoices.outgoing(order.value)

        rule = DeadLetter(redeliveries_max=0)
        async with client.consumer("orders", "billing", type=kind, start="earliest", dead_letter=rule) as consumer:
            handler = in_transaction if takes_transaction else alone
            running = asyncio.ensure_future(consumer.run(handler, concurrency=2))  # type: ignore[call-overload]
            await clock.advance(OUTAGE_MS)
            assert not await memory.read(client, "invoices")
            is_away = False
            await clock.advance(10_000)
            await assert_all_handled(memory, client, kind, list(handled.values()))
            assert sorted(await memory.read(client, "invoices")) == sorted(VALUES)
            consumer.stop()
            await running


@pytest.mark.parametrize("kind", KINDS)
async def test_stopping_during_an_outage(memory: Stores, kind: str) -> None:
    """The loop stops at once, and its messages are redelivered in order."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await prepared(client)

        @asynccontextmanager
        async def opened() -> AsyncIterator[Transaction]:
            raise ConnectionRefusedError
            yield

        async def handle(_received: Message, _txn: Transaction) -> None:
            raise AssertionError("it cannot begin")

        async with client.consumer("orders", "billing", type=kind, start="earliest") as consumer:
            running = asyncio.ensure_future(consumer.run(handle, transaction=opened, concurrency=2))
            await clock.advance(60_000)
            consumer.stop()
            await clock.advance(0)
            assert running.done()
            rest = [await consumer.receive(timeout_ms=0) for _ in VALUES]
            assert sorted((one.value, one.redelivery_count) for one in rest) == sorted((one, 0) for one in VALUES)
            assert kind == "shared" or [one.value for one in rest if one.key == b"a"] == [b"a0", b"a1", b"a2"]


async def test_a_transaction_that_can_never_begin(memory: Stores) -> None:
    """A programming error is not treated as an outage: the run ends, and no delivery counts."""
    async with memory.open() as client:
        await prepared(client)

        @asynccontextmanager
        async def yields_something_else() -> AsyncIterator[str]:
            yield "a transaction"

        async def handle(_received: Message, _txn: object) -> None:
            raise AssertionError("it cannot begin")

        async with client.consumer("orders", "billing", start="earliest") as consumer:
            for opened in (lambda: client.transaction(timeout_ms=-1), yields_something_else):
                with pytest.raises(InvalidInput, match=r"a transaction for .*handle cannot begin"):
                    await consumer.run(handle, transaction=opened)  # type: ignore[call-overload]
            assert (await consumer.receive()).redelivery_count == 0
