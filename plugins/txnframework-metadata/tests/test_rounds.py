"""How many sequential requests pass until an entry reaches a waiting reader of another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from metadata_world import Process, World, branch_of, step, value_of, waiting
from zope.interface import implementer

from txnframework.interfaces import IValueWatch, IWatch
from txnframework.model import EARLIEST, Key, KeyRange, LedgerEntry, Limit, Position, ReadRequest, Tail
from txnframework.testing.clock import run_ready
from txnframework_metadata.buffer.segment_view import grown_by


class Rounds:
    """Blocks every request of a process until no more can be made without an answer: together they are one round."""

    def __init__(self, process: Process, ledger: Any) -> None:
        self._held: list[asyncio.Future[None]] = []
        wire: Any = process.wire
        wire._step = self._delayed(wire._step)
        ledger.tail = self._delayed(ledger.tail)
        ledger.read = self._delayed(ledger.read)

    async def until(self, answer: asyncio.Future[Any]) -> int:
        """Return the number of rounds until the answer."""
        rounds = 0
        await run_ready(200)
        while not answer.done():
            assert self._held, "nothing is under way"
            await self._next()
            rounds += 1
        return rounds

    async def until_quiet(self) -> None:
        """Return when there are no more requests."""
        await run_ready(200)
        while self._held:
            await self._next()

    async def _next(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.set_result(None)
        await run_ready(200)

    def _delayed(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def delayed(*arguments: Any) -> Any:
            self._held.append(asyncio.get_running_loop().create_future())
            await self._held[-1]
            return await call(*arguments)

        return delayed


class Silent:
    """A watch that reports a change without its content."""

    def __init__(self, watch: IWatch) -> None:
        self._watch = watch

    async def changed(self) -> None:
        await self._watch.changed()

    async def close(self) -> None:
        await self._watch.close()


async def _received(process: Process, after: Position) -> str:
    """Wait for entries after a position, and return them."""
    buffer = await process.buffer()
    while True:
        page = await buffer.read(ReadRequest(after, Limit(10)))
        if page.entries:
            return value_of(page.entries[0].data)
        after = max(after, page.upto)
        await buffer.advanced(after)


async def _who_waits(world: World, *, is_told: bool = True) -> tuple[Process, asyncio.Future[str], Rounds]:
    """Start a process that waits at the end of the segment, and block its requests from now on."""
    reader = await world.process()
    if not is_told:
        ledger: Any = await reader.ledger()
        arm = ledger.watch

        async def watch() -> Silent:
            return Silent(await arm())

        ledger.watch = watch
    await (await reader.buffer()).recover()
    waits = await waiting(_received(reader, Position(1, -1)))
    return reader, waits, Rounds(reader, await reader.ledger())


@pytest.mark.parametrize(("is_told", "expected"), [(False, 2), (True, 1)])
async def test_what_was_committed_at_once_takes_two_rounds_at_most(is_told: bool, expected: int) -> None:
    """A commit is read in at most two rounds: end and entries, unless a watch announces them; then their intents.

    Intents of other transactions are not read.
    """
    world = World()
    process = await world.process()
    reader, waits, rounds = await _who_waits(world, is_told=is_told)
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await process.commit(txn)
    reader.wire.steps.clear()
    assert await rounds.until(waits) == expected
    assert await waits == "a"
    assert not [name for name, _ in reader.wire.steps if name.startswith("scan")]
    await (await reader.buffer()).close()


async def test_the_end_of_a_transaction_in_the_way_takes_no_round() -> None:
    """The header arrives with the wake-up, as stored, and the entries have been read already."""
    world = World()
    process = await world.process()
    reader, waits, rounds = await _who_waits(world)
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await rounds.until_quiet()
    assert not waits.done()
    await process.commit(txn)
    assert await rounds.until(waits) == 0
    assert await waits == "a"
    await (await reader.buffer()).close()


def test_what_is_told_counts_only_directly_behind_what_is_known() -> None:
    """Announced entries are used only directly after known ones.

    Otherwise the segment is read: there may be a gap or a new end.
    """
    tail = Tail(Position(3, 4), 3, sealed=False)
    entries = [LedgerEntry(Position(3, at), b"") for at in range(3, 8)]
    assert grown_by(tail, entries) == (Tail(Position(3, 7), 3, sealed=False), entries[2:])
    assert grown_by(tail, entries[:2]) == (tail, [])
    assert grown_by(tail, entries[3:]) == (None, [])
    assert grown_by(tail, (LedgerEntry(Position(4, 0), b""),)) == (None, [])
    assert grown_by(Tail(Position(3, 4), 3, sealed=True), entries) == (None, [])
    rolled = Tail(Position(3, 4), 5, sealed=False)
    first = (LedgerEntry(Position(5, 0), b""),)
    assert grown_by(rolled, first) == (Tail(Position(5, 0), 5, sealed=False), list(first))
    assert grown_by(rolled, entries) == (None, [])


async def test_who_asks_how_it_stands_does_not_get_what_was_told() -> None:
    """Announced values may be outdated, because another process may have confirmed an append since."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    await buffer.recover()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    stop = reader.wire.stop(step("get", "/txn/"))
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await stop.reached.wait()
    asked = await waiting(buffer.max_read_position())
    await process.commit(txn)
    await process.send("b")
    stop.go.set()
    assert await asked == Position(1, 1)
    await waits
    await buffer.close()


async def test_what_was_read_ahead_is_judged_when_it_is_handed_out() -> None:
    """An entry that was read ahead while its transaction was open is hidden after the abort was settled and
    collected.
    """
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    await buffer.recover()
    waits = await waiting(_received(reader, Position(1, -1)))
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await run_ready(500)
    ended = await process.abort(txn)
    await (await process.buffer()).settle(ended)
    await process.send("b")
    assert await waits == "b"
    assert await reader.values() == ["b"]
    await buffer.close()


async def test_more_than_is_held_is_decided_by_the_intents() -> None:
    """Entries beyond the limit need their intents; an open transaction beyond the limit still blocks reading."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    stop = reader.wire.stop(step("get", "/txn/"))
    txn, later = await process.begin(), await process.begin()
    await process.send("0", branch_of(txn))
    await stop.reached.wait()
    for at in range(1, 150):
        await process.send(f"{at}")
    await process.send("later", branch_of(later))
    await process.send("last")
    await process.commit(txn)
    stop.go.set()
    while await waits < Position(1, 149):
        waits = await waiting(buffer.advanced(waits.result()))
    waits = await waiting(buffer.advanced(Position(1, 149)))
    assert not waits.done()
    assert await reader.values() == [f"{at}" for at in range(150)]
    await process.commit(later)
    assert await waits == Position(1, 151)
    await buffer.close()


async def test_what_was_found_aborted_stays_so_while_only_what_is_new_is_read() -> None:
    """Its operation is unsettled, without an abort record: a later reading of other entries must not show it."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    await buffer.recover()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    for value in ("a", "b", "c"):
        txn = await process.begin()
        await process.send(value, branch_of(txn))
        await run_ready(500)
        await process.abort(txn)
        last = await waits
        waits = await waiting(buffer.advanced(last))
    await process.send("d")
    assert await waits == Position(1, 3)
    plan = await buffer.plan(EARLIEST, Position(1, 3))
    assert len(plan.aborted) == 3
    await buffer.close()


async def test_what_is_read_ahead_is_bounded() -> None:
    """At most the configured number of entries is held; later ones are read when fetched."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(EARLIEST))
    assert await waits == Position(1, -1)
    waits = await waiting(buffer.advanced(Position(1, -1)))
    txn = await process.begin()
    for at in range(250):
        await process.send(f"{at}", branch_of(txn))
    await run_ready(500)
    await process.commit(txn)
    await waits
    page = await buffer.read(ReadRequest(Position(1, -1), Limit(1000)))
    assert len(page.entries) <= 100
    assert await reader.values() == [f"{at}" for at in range(250)]
    await buffer.close()


@implementer(IValueWatch)
class Telling:
    """A watch on a header that announces the outcome; a deaf one misses every change."""

    def __init__(self, watch: IWatch, key: Key, world: World, *, is_deaf: bool = False) -> None:
        self._watch = watch
        self._key = key
        self._world = world
        self._is_deaf = is_deaf
        self.value: bytes | None = None

    async def changed(self) -> None:
        await self._watch.changed()
        while self._is_deaf:
            await self._watch.changed()
        (record,) = self._world.space.records.scan(KeyRange(self._key.path, self._key.path + "0"), 1).records
        self.value = record.value

    async def close(self) -> None:
        await self._watch.close()


async def test_an_end_that_a_watch_tells_takes_no_round() -> None:
    """An announced header is as good as one that is read, because an outcome never changes."""
    world = World()
    process = await world.process()
    reader, waits, rounds = await _who_waits(world)
    arm = reader.wire.watch

    async def watch(target: Any) -> Any:
        return Telling(await arm(target), target, world)

    reader.wire.watch = watch  # type: ignore[method-assign]
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await rounds.until_quiet()
    await process.commit(txn)
    assert await rounds.until(waits) == 0
    assert await waits == "a"
    await (await reader.buffer()).close()


async def test_who_began_to_write_just_now_is_taken_for_open_without_reading_it() -> None:
    """A new writer counts as open without a read if the entry and the end are announced.

    An end that was not announced is found by reading after a while.
    """
    world = World()
    process, reader = await world.process(), await world.process()
    arm, is_deaf = reader.wire.watch, False

    async def watch(target: Any) -> Any:
        return Telling(await arm(target), target, world, is_deaf=is_deaf)

    reader.wire.watch = watch  # type: ignore[method-assign]
    buffer = await reader.buffer()
    waits = await waiting(buffer.advanced(Position(1, -1)))
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await run_ready(200)
    await process.commit(txn)
    assert await waits == Position(1, 0)

    waits = await waiting(buffer.advanced(Position(1, 0)))
    reader.wire.steps.clear()
    txn = await process.begin()
    await process.send("b", branch_of(txn))
    await run_ready(200)
    assert not waits.done()
    await process.commit(txn)
    assert await waits == Position(1, 1)
    assert [name for name, _ in reader.wire.steps] == ["watch"]

    is_deaf = True
    waits = await waiting(buffer.advanced(Position(1, 1)))
    txn = await process.begin()
    await process.send("c", branch_of(txn))
    await process.commit(txn)
    await run_ready(200)
    assert not waits.done()
    await world.environment.advance(2)
    assert await waits == Position(1, 2)
    assert await reader.values() == ["a", "b", "c"]
    await buffer.close()
