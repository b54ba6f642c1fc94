"""A block of a transaction that catches a cancellation of its task is not committed unless the program says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Producer, State, Transaction
from txnframework.errors import TransactionConflict, TransactionHasFailedOperations

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

Block = Callable[[asyncio.Event, Transaction], Awaitable[None]]


async def waits(sent: asyncio.Event) -> None:
    """Report that the block has sent its first message, and wait for the cancellation between two sends."""
    sent.set()
    await asyncio.Event().wait()


async def catches(sent: asyncio.Event, txn: Transaction) -> None:
    with suppress(asyncio.CancelledError):
        await waits(sent)


async def catches_in_a_group(sent: asyncio.Event, txn: Transaction) -> None:
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            group.create_task(catches(sent, txn))


async def withdraws(sent: asyncio.Event, txn: Transaction) -> None:
    await catches(sent, txn)
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def commits(sent: asyncio.Event, txn: Transaction) -> None:
    await catches(sent, txn)
    await txn.commit()


async def times_out_within(sent: asyncio.Event, txn: Transaction) -> None:
    sent.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()


async def ended(client: Client, producer: Producer, block: Block, cancels: bool = True) -> tuple[str, State]:
    """Run a block in a task that is cancelled between two sends; return how the task ended, and the transaction."""
    sent, begun = asyncio.Event(), list[Transaction]()

    async def work() -> None:
        async with client.transaction() as txn:
            begun.append(txn)
            await producer.send(b"first", txn=txn)
            await block(sent, txn)

    task = asyncio.ensure_future(work())
    await sent.wait()
    if cancels:
        task.cancel()
    await asyncio.wait({task})
    how = "cancelled" if task.cancelled() else "failed" if task.exception() else "returned"
    return how, await client.outcome(begun[0].id)


@pytest.fixture
async def client(stores: Stores) -> AsyncIterator[Client]:
    async with stores.open() as client:
        yield client


@pytest.mark.parametrize("block", [catches, catches_in_a_group])
async def test_a_caught_cancellation(client: Client, block: Block) -> None:
    """The transaction is aborted, and the cancellation is raised at the end of the block."""
    await client.create_topic("orders")
    producer = await client.producer("orders")
    assert await ended(client, producer, block) == ("cancelled", State.ABORTED)
    async with await client.reader("orders") as reader:
        assert [message.value async for message in reader] == []


@pytest.mark.parametrize("block", [withdraws, commits, times_out_within])
async def test_what_the_program_decided(client: Client, block: Block) -> None:
    """A withdrawn cancellation, a commit in the block, and a timeout within the block do not abort the transaction."""
    await client.create_topic("orders")
    producer = await client.producer("orders")
    how, state = await ended(client, producer, block, cancels=block is not times_out_within)
    assert (how, state) == ("returned", State.COMMITTED)


async def test_an_older_cancellation(client: Client) -> None:
    """A transaction that begins after its task was cancelled is committed."""
    await client.create_topic("orders")
    producer = await client.producer("orders")
    waiting = asyncio.Event()

    async def work() -> State:
        with suppress(asyncio.CancelledError):
            await waits(waiting)
        async with client.transaction() as txn:
            await producer.send(b"last", txn=txn)
        return txn.state

    task = asyncio.ensure_future(work())
    await waiting.wait()
    task.cancel()
    assert await task is State.COMMITTED


async def test_a_joined_part(client: Client) -> None:
    """A joined part whose block caught a cancellation cannot be finished, so its branch is not reported."""
    await client.create_topic("orders")
    sent = asyncio.Event()
    async with client.transaction() as txn:
        joined = client.join(txn.id)

        async def work() -> None:
            async with joined:
                with suppress(asyncio.CancelledError):
                    await waits(sent)

        task = asyncio.ensure_future(work())
        await sent.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        with pytest.raises((TransactionHasFailedOperations, TransactionConflict)):
            await joined.finish()
