"""Closing a client leaves nothing behind, whatever is in progress and whichever task is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.broker import Host
from txnframework.config import load_config
from txnframework.errors import Closed, Unavailable
from txnframework.model.paths import leases_range
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores


async def tasks_left() -> list[str]:
    """Return the tasks besides the test that are still running after stopped tasks have ended."""
    await run_ready()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [getattr(task.get_coro(), "__qualname__", "?") for task in others]


def test_an_error_is_not_hidden_by_what_closing_could_not_do(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a store becomes unavailable, the program's own error is raised first, with the error of closing attached."""

    def fail_closing(one: Any) -> None:
        close = one.close

        async def failing() -> None:
            await close()
            raise Unavailable("nobody answers")

        monkeypatch.setattr(one, "close", failing)

    async def work() -> None:
        async with memory.open() as client:
            await client.create_topic("orders")
            fail_closing(client.host)
            async with (
                await client.producer("orders") as producer,
                await client.consumer("orders", "billing") as consumer,
                await client.reader("orders") as reader,
            ):
                for one in (producer, consumer, reader):
                    fail_closing(one)
                raise ValueError("its own error")

    def work_blocking() -> None:
        with memory.open_blocking() as client:
            fail_closing(client.asynchronous.host)
            raise ValueError("its own error")

    async def work_well() -> None:
        async with memory.open() as client:
            fail_closing(client.host)

    with pytest.raises(ValueError, match="its own error") as raised:
        asyncio.run(work())
    assert raised.value.__notes__ == ["closing failed as well: nobody answers"] * 4
    with pytest.raises(ValueError, match="its own error") as raised:
        work_blocking()
    assert raised.value.__notes__ == ["closing failed as well: nobody answers"]
    with pytest.raises(Unavailable):
        asyncio.run(work_well())


async def test_what_is_settled_while_closing_begins_nothing_anew(memory: Stores) -> None:
    """Settlement that opens a segment during the close does not restart the sweeps."""
    async with memory.open() as one:
        await one.create_topic("orders")
        async with memory.open() as two:
            txn = one.transaction()
            await txn.begin()
            await (await one.producer("orders")).send(b"new", txn=txn)
            await two.commit(txn.id)
    assert await tasks_left() == []


async def test_closing_goes_on_when_whoever_waits_for_it_is_cancelled(memory: Stores) -> None:
    """A cancelled caller returns at once, the close continues, and a second close waits for it."""
    gate = asyncio.Event()
    async with memory.open() as watching:
        async with memory.open() as client:
            host = client.host
            await client.create_topic("orders")
            async with client.transaction() as txn:
                await (await client.producer("orders")).send(b"new", txn=txn)
            host.own_transactions._settling.start(gate.wait)
            closing = asyncio.ensure_future(host.close())
            await run_ready()
            closing.cancel()
            await asyncio.wait({closing})
            assert closing.cancelled()
            again = asyncio.ensure_future(host.close())
            await run_ready()
            assert not again.done()
            gate.set()
            await again
        left = await watching.host.metadata.scan(leases_range(""), 100)
        assert left.records == ()
    assert await tasks_left() == []


async def test_closing_goes_on_past_what_fails(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors while closing are reported; everything else is closed, including the stores and their sessions."""

    async def fails() -> None:
        raise Unavailable("the disk is gone")

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(memory.open())
        await client.create_topic("orders")
        sent = await (await client.producer("orders")).send(b"new")
        segment = await client.host.segment(sent.segment)
        monkeypatch.setattr(segment.buffer, "close", fails)
        closing = stack.pop_all()
    with pytest.raises(Unavailable, match="the disk"):
        await closing.aclose()
    with pytest.raises(Closed):
        await client.host.metadata.scan(leases_range(""), 1)
    assert await tasks_left() == []


async def test_a_begin_that_waits_for_its_share_is_told_of_the_close(memory: Stores) -> None:
    """A begin that waits for a share of the coordinators raises an error when the client closes."""
    reached = asyncio.Event()

    async def never(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    async with memory.open() as client:
        await client.host.coordinator()
        (served,) = client.host._coordinators.values()
        client.host.metadata.acquire_lease = never  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(served.share.held())
        await reached.wait()
    assert await asyncio.wait_for(waiting, 60) == frozenset()
    with pytest.raises(Closed):
        await asyncio.wait_for(served.share.changed(frozenset()), 60)


def test_who_comes_after_the_client_was_closed_is_told_so(memory: Stores) -> None:
    """The first call after the close, of the client or of its objects, raises an error that names what was closed."""

    async def work() -> tuple[str, list[str]]:
        async with memory.open() as client:
            stores = client.host.stores
            await client.create_topic("orders")
            producer = await client.producer("orders")
            await producer.send(b"one")
            consumer = await client.consumer("orders", "billing", start="earliest")
            message = await consumer.receive()
            following = aiter(await client.reader("orders", follow=True))
            await anext(following)
            begun, not_begun = client.transaction(), client.transaction()
            await begun.begin()
            waiting = asyncio.ensure_future(consumer.receive())
            await run_ready()
        told = []
        for calling in (
            waiting,
            consumer.receive(),
            consumer.ack(message),
            producer.send(b"two"),
            producer.send(b"two", txn=begun),
            anext(following),
            not_begun.begin(),
            begun.commit(),
            begun.abort(),
            *(
                call()
                for call in (partial(client.producer, "orders"), partial(client.layout, "orders"), client.maintain)
            ),
        ):
            with pytest.raises(Closed) as refused:
                await calling
            told.append(str(refused.value))
        with pytest.raises(Closed) as refused:
            client.transaction()
        told.append(str(refused.value))
        assert repr(client) == f"<Client of {stores}, closed>"
        for one in (consumer, producer):
            await one.close()
        return stores, told

    stores, told = asyncio.run(work())
    assert set(told) == {
        f"the client of {stores} was closed when its 'with' block ended, and with it all that it made: open another"
    }


def test_what_a_client_made_is_known_by_sight(memory: Stores) -> None:
    """The repr of a client's objects names what they are and belong to, and never a password."""
    with memory.open_blocking() as client:
        client.create_topic("orders")
        topic = "topic://public/default/orders"
        producer = client.producer(topic, name="till")
        consumer = client.consumer(topic, "billing", name="clerk")
        transaction = client.transaction()
        assert [*map(repr, (client, producer, consumer, client.reader(topic), transaction))] == [
            f"<blocking <Client of {client.asynchronous.host.stores}>>",
            f"<blocking <Producer till of {topic}>>",
            f"<blocking <Consumer clerk of {topic}, subscription billing>>",
            f"<blocking <Reader of {topic}>>",
            "<blocking <Transaction not begun>>",
        ]
        with transaction:
            with client.join(transaction.id) as part:
                assert repr(part) == f"<blocking <JoinedTransaction {transaction.id}, branch {part.branch}>>"
            assert repr(transaction) == f"<blocking <Transaction {transaction.id}, OPEN>>"
        producer.close()
        assert repr(producer) == f"<blocking <Producer till of {topic}, closed>>"
    named: Any = Host.stores
    urls = {"metadata": {"url": "postgresql://clerk:sesame@there/shop"}, "ledger": {"url": "sqlite:///shop.db"}}
    assert (
        named.fget(SimpleNamespace(config=load_config(urls)))
        == "postgresql://clerk:***@there/shop and sqlite:///shop.db"
    )


def test_errors_come_out_of_the_block(memory: Stores) -> None:
    """Errors leave the block as they were raised in it."""

    async def fail() -> None:
        async with memory.open():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())
    with pytest.raises(ZeroDivisionError), memory.open_blocking():
        raise ZeroDivisionError


async def test_a_dispatch_that_opens_while_the_host_closes(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch that opens while the host closes ends by itself: no lease and no task remains."""
    async with memory.open() as client:
        await client.create_topic("orders")
        await client.subscribe("orders", "billing")
        dispatches = client.host.dispatches
        opening, closed = asyncio.Event(), asyncio.Event()
        parts_of = dispatches._parts

        async def parts_late(ref: Any) -> Any:
            opening.set()
            await closed.wait()
            return await parts_of(ref)

        monkeypatch.setattr(dispatches, "_parts", parts_late)
        joining = asyncio.ensure_future(client.consumer("orders", "billing"))
        await opening.wait()
        await dispatches.close()
        closed.set()
        with pytest.raises(Closed):
            await joining
        assert not (await client.host.metadata.scan(leases_range("dispatch "), 10)).records


async def test_open_consumers_leave_no_tasks(memory: Stores) -> None:
    """Consumers need not be closed before the client, even if two clients share a subscription."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("orders", segments=4)
        await client.consumer("orders", "billing", type="shared")
        await other.consumer("orders", "billing", type="shared")
        await run_ready()
    assert await tasks_left() == []
