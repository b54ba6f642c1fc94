"""Waiting readers are woken by relevant changes, and read nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from metadata_world import World, branch_of, step, waiting

from txnframework.errors import Closed, Unavailable
from txnframework.interfaces import IWatch
from txnframework.model import EARLIEST, Position
from txnframework.testing.clock import run_ready


async def test_who_waits_is_woken_by_the_growth_of_the_ledger() -> None:
    """This includes appends of another process."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(EARLIEST))
    before = await waiting(buffer.advanced(Position(1, -1)))
    assert await waits == Position(1, -1)
    await process.send("a")
    assert await before == Position(1, 0)
    await buffer.close()


async def test_who_waits_behind_an_open_transaction_reads_nothing_until_it_ends() -> None:
    """Appends of others are not read, because the position cannot move before that end."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    steps = len(reader.wire.steps)
    for at in range(10):
        await process.send(f"{at}")
    await run_ready(500)
    assert len(reader.wire.steps) == steps
    await process.commit(txn)
    assert await waits == Position(1, 0)
    assert await buffer.advanced(Position(1, 0)) == Position(1, 10)
    await buffer.close()


async def test_a_header_that_was_watched_before_it_was_read_is_not_read_again() -> None:
    """Where arming a watch takes no request, as in PostgreSQL, the watch announces later changes of the header."""

    class ArmedAtOnce:
        def __init__(self, arming: Awaitable[IWatch]) -> None:
            self._arming = asyncio.ensure_future(arming)

        async def changed(self) -> None:
            await (await self._arming).changed()

        async def close(self) -> None:
            await (await self._arming).close()

    world = World()
    process, reader = await world.process(), await world.process()
    arm = reader.wire.watch

    async def watch(target: Any) -> ArmedAtOnce:
        return ArmedAtOnce(arm(target))

    reader.wire.watch = watch  # type: ignore[method-assign, assignment]
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await run_ready(200)
    read = [name for name, argument in reader.wire.steps if step("get", "/txn/")(name, argument)]
    assert len(read) == 1
    await process.commit(txn)
    assert await waits == Position(1, 0)
    await buffer.close()


async def test_an_end_between_the_reading_and_the_watch_is_not_missed() -> None:
    """The segment is read again after the watch on the open transaction is armed."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    buffer = await reader.buffer()
    await buffer.recover()
    stop = reader.wire.stop(step("watch", "/txn/"))
    waits = await waiting(buffer.advanced(Position(1, -1)))
    assert stop.reached.is_set()
    await process.abort(txn)
    stop.go.set()
    assert await waits == Position(1, 0)
    await buffer.close()


async def test_one_transaction_after_the_other_is_waited_for() -> None:
    """The position advances to the next open transaction; callers that wait for a later position continue to wait."""
    world = World()
    process, reader = await world.process(), await world.process()
    one, two = await process.begin(), await process.begin()
    await process.send("a", branch_of(one))
    await process.send("b", branch_of(two))
    await process.send("c")
    buffer = await reader.buffer()
    near = await waiting(buffer.advanced(Position(1, -1)))
    far = await waiting(buffer.advanced(Position(1, 0)))
    await process.commit(one)
    assert await near == Position(1, 0)
    await run_ready()
    assert not far.done()
    await process.abort(two)
    assert await far == Position(1, 2)
    assert await reader.values() == ["a", "c"]
    await buffer.close()


async def test_a_sealed_segment_ends_the_waiting_once_it_is_decided() -> None:
    """The wait ends, because no more entries will come."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(Position(1, 0)))
    await (await process.ledger()).seal()
    await run_ready()
    assert not waits.done()
    assert not await buffer.finished(Position(1, -1))
    await process.commit(txn)
    assert await waits == Position(1, 0)
    assert await buffer.finished(Position(1, 0))
    assert await buffer.advanced(Position(1, 0)) == Position(1, 0)
    await buffer.close()


async def test_an_outcome_settled_in_the_same_process_is_visible_at_once() -> None:
    """The outcome is visible before its operations are removed, without waiting for a watch."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    buffer = await process.buffer()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    process.wire.inner.cut()
    ended = await other.commit(txn)
    process.wire.inner.link.restore()
    await run_ready()
    assert not waits.done()
    stop = process.wire.stop(step("delete apply", "/txn-op/"))
    settling = await waiting(buffer.settle(ended))
    assert stop.reached.is_set()
    assert await waits == Position(1, 0)
    stop.go.set()
    await settling
    await buffer.close()


async def test_a_failed_reading_is_told_to_who_waits_and_the_next_one_starts_afresh() -> None:
    """The waiting callers get the error; no task loops or hangs."""
    process = await World().process()
    buffer = await process.buffer()
    await buffer.recover()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    process.wire.refuse(step("get", "/txn/"))
    with pytest.raises(Unavailable):
        await buffer.advanced(Position(1, -1))
    waits = await waiting(buffer.advanced(Position(1, -1)))
    await process.commit(txn)
    assert await waits == Position(1, 0)
    await buffer.close()


async def test_a_watch_that_is_armed_after_the_reading_failed_does_not_stay() -> None:
    """Otherwise, the next reading would use that watch, and wait for a ledger that does not grow."""
    process = await World().process()
    buffer = await process.buffer()
    await buffer.recover()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    stop = process.wire.stop(step("watch", "/txn/"))
    process.wire.refuse(step("get", "/txn/"))
    failing = await waiting(buffer.advanced(Position(1, -1)))
    stop.go.set()
    with pytest.raises(Unavailable):
        await failing
    waits = await waiting(buffer.advanced(Position(1, -1)))
    await process.commit(txn)
    await run_ready(200)
    assert waits.done()
    assert await waits == Position(1, 0)
    await buffer.close()


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    """One cancelled wait does not affect others; closing fails the remaining ones."""
    process = await World().process()
    buffer = await process.buffer()
    one = await waiting(buffer.advanced(Position(1, -1)))
    two = await waiting(buffer.advanced(Position(1, -1)))
    three = await waiting(buffer.advanced(Position(1, 0)))
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    await process.send("a")
    assert await two == Position(1, 0)
    await buffer.close()
    with pytest.raises(Closed):
        await three


async def test_readings_wanted_at_the_same_time_are_shared() -> None:
    """A reading that began before the request does not serve it.

    One reading serves all requests made before it begins.
    """
    process = await World().process()
    buffer = await process.buffer()
    await buffer.recover()
    process.wire.steps.clear()
    await asyncio.gather(*(buffer.max_read_position() for _ in range(20)))
    assert sum(name == "scan_index" for name, _ in process.wire.steps) <= 2


async def test_who_waits_after_a_reading_does_not_have_it_repeated() -> None:
    """Watches report changes since the reading began; earlier reports are ignored."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    first = await waiting(buffer.advanced(Position(1, -1)))
    await process.send("a")
    assert await first == Position(1, 0)
    assert await buffer.max_read_position() == Position(1, 0)
    reader.wire.steps.clear()
    second = await waiting(buffer.advanced(Position(1, 0)))
    assert reader.wire.steps == []
    await process.send("b")
    assert await second == Position(1, 1)
    # This one is known, but the watch has told of more since it was read.
    third = await waiting(buffer.advanced(Position(1, 1)))
    await process.send("c")
    assert await third == Position(1, 2)
    await buffer.close()


async def test_a_reading_that_began_before_the_watches_told_is_not_relied_on() -> None:
    """Another caller's reading takes the end, then the ledger grows: the waiting caller reads again."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    first = await waiting(buffer.advanced(Position(1, -1)))
    stop = reader.wire.stop(step("scan_index", "writes-by-segment"))
    reading = await waiting(buffer.max_read_position())
    assert stop.reached.is_set()
    await process.send("a")
    stop.go.set()
    assert await first == Position(1, 0)
    await reading
    second = await waiting(buffer.advanced(Position(1, 0)))
    await process.send("b")
    assert await second == Position(1, 1)
    await buffer.close()


async def test_who_comes_while_a_failed_follower_stops_is_told() -> None:
    """Releasing watches takes a round trip; a request meanwhile is answered or fails."""

    class SlowWatch:
        def __init__(self, watch: IWatch) -> None:
            self._watch = watch

        async def changed(self) -> None:
            await self._watch.changed()

        async def close(self) -> None:
            await run_ready()
            await self._watch.close()

    process = await World().process()
    ledger = await process.ledger()
    arm = ledger.watch

    async def watch() -> SlowWatch:
        return SlowWatch(await arm())

    ledger.watch = watch  # type: ignore[method-assign, assignment]
    buffer = await process.buffer()
    await buffer.recover()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    process.wire.refuse(step("get", "/txn/"))

    async def patient() -> Position:
        while True:
            try:
                return await buffer.advanced(Position(1, -1))
            except Unavailable:
                continue

    waits = await waiting(patient())
    joins = await waiting(patient())
    await process.commit(txn)
    assert await asyncio.wait_for(asyncio.gather(waits, joins), 10) == [Position(1, 0)] * 2
    await buffer.close()
