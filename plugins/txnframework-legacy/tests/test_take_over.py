"""A host dies with transactions in every state, and another one takes its coordinators over."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, cast

import txnframework
from txnframework import Client
from txnframework.errors import TxnFrameworkError
from txnframework.model import Limit, State
from txnframework.plugin import load_plugins
from txnframework.testing import VirtualEnvironment

ORDERS, INVOICES = "persistent://public/default/orders", "persistent://public/default/invoices"
COORDINATORS = 4
HOUR_MS = 3_600_000
SECTIONS = {
    "domains": {"segment": {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}},
    "transactions": {"coordinators": COORDINATORS, "sweep_interval_ms": HOUR_MS, "max_clock_skew_ms": 0},
    "subscriptions": {"redelivery_delay_ms": 0},
    # Closing waits by the virtual clock, which is not advanced then.
    "client": {"close_timeout_ms": 0},
}


def opened(clock: VirtualEnvironment) -> Any:
    """Open another host over the stores of this test."""
    registry = load_plugins(
        [importlib.import_module(f"txnframework_{name}.plugin") for name in ("memory", "dispatchers", "legacy")]
    )
    url = f"memory://take-over-{id(clock)}"
    config = {"metadata": {"url": url}, "ledger": {"url": url}, **SECTIONS}
    return txnframework.open(config, registry=registry, environment=clock)


async def held(client: Client) -> frozenset[int]:
    """Return the coordinators that a host serves."""
    (served,) = client.host._coordinators.values()
    return await served.share.held()


async def begun(client: Client, value: bytes, message: Any = None, consumer: Any = None) -> Any:
    """Begin a transaction that sends, and acknowledges where there is a message."""
    txn = client.transaction(domain="persistent", timeout_ms=HOUR_MS)
    await txn.begin()
    await (await client.producer(INVOICES)).send(value, txn=txn)
    if message is not None:
        await consumer.ack(message, txn=txn)
    return txn


async def read(client: Client, topic: str) -> list[bytes]:
    async with await client.reader(topic) as reader:
        return [message.value async for message in reader]


def kill(client: Client) -> None:
    """Stop a host as the kill of its process does: its session ends, it writes nothing any more."""
    for store in (client.host.metadata, client.host.ledgers):
        cast(Any, store).crash()


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


async def test_orphans_whose_participants_cannot_be_told() -> None:
    """All of them are decided at once, however long it takes until those that they wrote to can be told."""
    clock = VirtualEnvironment()
    async with opened(clock) as two:
        await two.create_topic(INVOICES)
        await two.host.coordinator("persistent")
        two.host.participants.settle = never
        with suppress(TxnFrameworkError):
            async with opened(clock) as one:
                orphans = [await begun(one, b"never") for _ in range(3)]
                kill(one)
        await clock.advance(1_000)
        assert [await two.outcome(txn.id) for txn in orphans] == [State.ABORTED] * 3


async def test_coordinators_of_a_host_that_dies() -> None:
    """
    What it left open is aborted, what it had decided takes effect as it was decided, its acknowledgments too, and what
    another host has open stays so; that host serves all coordinators then, and no id comes twice.
    """
    clock = VirtualEnvironment()
    async with opened(clock) as two:
        await two.create_topic(ORDERS)
        await two.create_topic(INVOICES)
        await (await two.producer(ORDERS)).send_many([b"1", b"2", b"3"])
        await two.host.coordinator("persistent")
        with suppress(TxnFrameworkError):  # it is closed when nothing of its stores is left
            async with opened(clock) as one:
                await one.host.coordinator("persistent")
                await asyncio.gather(held(one), held(two))  # they take part from here on
                await clock.advance(1_000)
                assert len(await held(one)) == len(await held(two)) == COORDINATORS // 2
                consumer = await one.consumer(ORDERS, "billing", start="earliest")
                messages = [await consumer.receive(timeout_ms=None) for _ in range(3)]
                committing, aborting, left_open = [
                    await begun(one, b"of " + message.value, message, consumer) for message in messages
                ]
                mine = await begun(two, b"mine")
                ids = {txn.id for txn in (committing, aborting, left_open, mine)}
                one.host.participants.settle = never
                ending = [asyncio.ensure_future(end) for end in (committing.commit(), aborting.abort())]
                await clock.advance(10)
                assert not any(end.done() for end in ending)
                assert await read(two, INVOICES) == []
                kill(one)
                for end in ending:
                    end.cancel()
                await asyncio.gather(*ending, return_exceptions=True)
        await clock.advance(1_000)
        assert len(await held(two)) == COORDINATORS
        outcomes = [await two.outcome(txn.id) for txn in (committing, aborting, left_open, mine)]
        assert outcomes == [State.COMMITTED, State.ABORTED, State.ABORTED, State.OPEN]
        await mine.commit()
        assert await read(two, INVOICES) == [b"of 1", b"mine"]
        again = await two.consumer(ORDERS, "billing")
        assert [(await again.receive(timeout_ms=None)).value for _ in range(2)] == [b"2", b"3"]
        coordinator = await two.host.coordinator("persistent")
        assert await coordinator.outstanding(None, Limit(9)) == ()
        more = {(await begun(two, b"more")).id for _ in range(4 * COORDINATORS)}
        assert not more & ids
