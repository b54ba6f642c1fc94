"""Writers of one log take turns: in the order of their wishes, and past one that does not use its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txnframework.testing import VirtualEnvironment, run_ready
from txnframework_nats._options import ConnectionOptions, locate
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.ledgers._records import Asked
from txnframework_nats.ledgers._turns import TurnQueue

SUBJECT = "turns.of.a.log"
BOUND_S = 120.0
LONGEST_HOLD_MS = 1_000


class World:
    """Some writers with one clock, whose queues all hear the same server."""

    def __init__(self, url: str) -> None:
        self.environment = VirtualEnvironment()
        self._url = url
        self.queues: list[TurnQueue] = []
        self.connections: list[NatsConnection] = []

    async def writer(self) -> TurnQueue:
        """Return the queue of one more writer, with a connection of its own."""
        connection = await NatsConnection.open(locate(self._url), ConnectionOptions())
        queue = TurnQueue(self.environment, connection, f"{SUBJECT}.{self._url.rpartition('/')[2]}")
        self.connections.append(connection)
        self.queues.append(queue)
        return queue

    async def listening(self, *queues: TurnQueue) -> None:
        """Return when these writers, which were refused, hear the others: the servers know that they listen."""
        for queue in queues:
            await queue.refused(1)
        await self.settle()

    async def settle(self) -> None:
        """Return when every message that was sent is received."""
        for connection in self.connections * 2:
            await connection.api("INFO")
        await run_ready()


@asynccontextmanager
async def world(url: str) -> AsyncIterator[World]:
    """Close all writers at the end of the block."""
    made = World(url)
    try:
        yield made
    finally:
        for queue, connection in zip(made.queues, made.connections, strict=True):
            queue.close()
            await connection.close()


async def test_a_single_writer_says_nothing(url: str) -> None:
    """A writer that was never refused waits for nothing, and needs not read before it writes."""
    async with world(url) as made:
        alone = await made.writer()
        for _ in range(20):
            assert not await alone.wait()
            alone.measure(0.001)
            await alone.over()


async def test_turns_in_the_order_of_wishes(url: str) -> None:
    """The second writer waits until the first one has stored its records; then it may have to read."""
    async with world(url) as made:
        first, second = await made.writer(), await made.writer()
        await made.listening(first, second)
        assert await asyncio.wait_for(first.wait(), BOUND_S)
        waiting = asyncio.create_task(second.wait())
        await made.settle()
        assert not waiting.done()
        # The first writer goes on with its turn, without reading: the others wait.
        await first.over()
        assert not await first.wait()
        await made.settle()
        assert not waiting.done()
        await first.refused(2)
        assert await asyncio.wait_for(waiting, BOUND_S)


async def test_a_turn_is_over_after_some_records(url: str) -> None:
    """A writer that always has more to write leaves room for the others."""
    async with world(url) as made:
        first, second = await made.writer(), await made.writer()
        await made.listening(first, second)
        await asyncio.wait_for(first.wait(), BOUND_S)
        waiting = asyncio.create_task(second.wait())
        stored, next_turn = 0, asyncio.create_task(asyncio.sleep(0, False))
        while next_turn.done() or not stored:
            assert not await next_turn, "it is still the turn of the first writer"
            await first.over()
            stored += 1
            next_turn = asyncio.create_task(first.wait())
            await made.settle()
        assert await asyncio.wait_for(waiting, BOUND_S)
        assert 1 < stored < 100
        await second.refused(2)
        assert await asyncio.wait_for(next_turn, BOUND_S)


async def test_a_dead_writer_loses_its_turn(url: str) -> None:
    """If a writer does not use its turn, the next one waits for a bounded time."""
    async with world(url) as made:
        dead, other = await made.writer(), await made.writer()
        await made.listening(dead, other)
        await asyncio.wait_for(dead.wait(), BOUND_S)
        waiting = asyncio.create_task(other.wait())
        await made.settle()
        assert not waiting.done()
        await made.environment.advance(LONGEST_HOLD_MS)
        assert await asyncio.wait_for(waiting, BOUND_S)


async def test_a_writer_that_was_asked_listens(url: str) -> None:
    """A record that asks for turns makes a writer, which was never refused, wait for the one that wrote it."""
    async with world(url) as made:
        busy, refused = await made.writer(), await made.writer()
        await made.listening(refused)
        assert not await busy.wait()
        busy.applied(Asked(b"another", 30))
        waiting = asyncio.create_task(busy.wait())
        await made.settle()
        assert await asyncio.wait_for(refused.wait(), BOUND_S)
        await made.settle()
        await made.environment.advance(30)
        await made.settle()
        assert not waiting.done()
        await refused.refused(2)
        assert await asyncio.wait_for(waiting, BOUND_S)
