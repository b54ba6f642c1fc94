"""What a client leaves behind when it is closed: nothing, whatever is under way and whoever is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.errors import Closed, Unavailable
from txnframework.model.paths import leases_range
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores


async def tasks_left() -> list[str]:
    """Return what runs besides the test, once everything that was told to end has ended."""
    await run_ready()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [getattr(task.get_coro(), "__qualname__", "?") for task in others]


def test_an_error_is_not_hidden_by_what_closing_could_not_do(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store goes away, what the program was doing is told first, and that closing failed beside it."""

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
            fail_closing(client._client.host)
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


def test_what_is_settled_while_closing_begins_nothing_anew(memory: Stores) -> None:
    """A segment that is opened by settling, when the sweeps were stopped already, does not start them again."""

    async def work() -> None:
        async with memory.open() as one:
            await one.create_topic("orders")
            async with memory.open() as two:
                txn = one.transaction()
                await txn.begin()
                await (await one.producer("orders")).send(b"new", txn=txn)
                await two.commit(txn.id)
        assert await tasks_left() == []

    memory.run(work())


def test_closing_goes_on_when_whoever_waits_for_it_is_cancelled(memory: Stores) -> None:
    """The caller is free at once, everything is let go of in the end, and closing again waits for that."""

    async def work() -> None:
        gate = asyncio.Event()
        async with memory.open() as watching:
            async with memory.open() as client:
                host = client.host
                await client.create_topic("orders")
                async with client.transaction() as txn:
                    await (await client.producer("orders")).send(b"new", txn=txn)
                host._background.start(gate.wait)
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

    memory.run(work())


def test_closing_goes_on_past_what_fails(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be closed is told; everything else is closed, the stores and their sessions too."""

    async def fails() -> None:
        raise Unavailable("the disk is gone")

    async def work() -> None:
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

    memory.run(work())


def test_a_begin_that_waits_for_its_share_is_told_of_the_close(memory: Stores) -> None:
    """Not left to wait for ever for a look at the leases that is not going to come."""

    async def work() -> None:
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
        assert await asyncio.wait_for(waiting, 5) == frozenset()
        with pytest.raises(Closed):
            await asyncio.wait_for(served.share.changed(frozenset()), 5)

    memory.run(work())
