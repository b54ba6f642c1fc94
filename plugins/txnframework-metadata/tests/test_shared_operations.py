"""Concurrent calls of one transaction for several segments, and the steps of the store that they share."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from metadata_world import PUT_OPERATION, World, step

from txnframework.errors import InvalidInput, TransactionConflict
from txnframework.model import Applied, Branch, Key, Record, State, Step, SweepResult, TxnID
from txnframework.model.records import WriteOperation
from txnframework.testing.clock import run_ready
from txnframework_metadata.options import BufferOptions, CoordinatorOptions
from txnframework_metadata.records.views import StoredOperation

SEGMENTS = [f"segment://public/default/wide-{at}/0000-ffff-0" for at in range(5)]


def puts(steps: list[tuple[str, Any]]) -> list[int]:
    """Return how many operations each step wrote."""
    return [
        len(argument.puts) if isinstance(argument, Step) else 1
        for name, argument in steps
        if PUT_OPERATION(name, argument)
    ]


async def test_intents_of_concurrent_sends_share_a_step() -> None:
    """Calls of different transactions use different steps."""
    world = World()
    process = await world.process()
    one, two = await process.begin(), await process.begin()
    for segment in SEGMENTS:
        await process.buffer(segment)
    process.wire.steps.clear()
    await asyncio.gather(
        *(process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS for txn in (one, two))
    )
    assert puts(process.wire.steps) == [5, 5]
    assert world.operations() == 10
    await process.commit(one)
    await process.commit(two)
    for segment in SEGMENTS:
        assert await process.values(segment=segment) == ["a", "a"]


async def test_everybody_hears_that_the_transaction_has_ended() -> None:
    """All callers get an error, and no entry is appended."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await other.abort(txn)
    sends = [process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS]
    told = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in told] == [TransactionConflict] * 5
    assert world.operations() == 0


async def test_a_lost_reply_writes_no_intent_twice() -> None:
    """The group reads the stored intents for all of its callers."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.lose_reply(PUT_OPERATION)
    await asyncio.gather(*(process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS))
    assert world.operations() == 5


@pytest.mark.parametrize("cancelled", [1, 5])
async def test_a_cancelled_send_leaves_the_others_alone(cancelled: int) -> None:
    """The step continues while at least one caller waits for it."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for segment in SEGMENTS:
        await process.buffer(segment)
    stop = process.wire.stop(PUT_OPERATION)
    sends = [asyncio.ensure_future(process.send("a", Branch(txn.txn_id, 0), segment)) for segment in SEGMENTS]
    await stop.reached.wait()
    for send in sends[:cancelled]:
        send.cancel()
    await asyncio.wait(sends[:cancelled])
    stop.go.set()
    await asyncio.gather(*sends[cancelled:])
    # A step whose callers were all cancelled was cancelled before it was sent.
    assert world.operations() == (5 if cancelled < 5 else 0)
    await process.commit(txn)
    for segment, send in zip(SEGMENTS, sends, strict=True):
        assert await process.values(segment=segment) == ([] if send.cancelled() else ["a"])


async def test_two_settlings_of_one_transaction_help_each_other() -> None:
    """The second settlement does not stop work that the first one needs."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await asyncio.gather(*(process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS))
    await process.abort(txn)
    stop = process.wire.stop(step("put", "/txn-aborted/"))
    first = asyncio.ensure_future(process.coordinator.settle(txn.txn_id))
    await stop.reached.wait()
    await process.coordinator.settle(txn.txn_id)
    stop.go.set()
    await first
    assert world.operations() == 0
    assert len(world.paths("/txn-aborted/")) == 5
    for segment in SEGMENTS:
        assert await process.values(segment=segment) == []


async def test_settlings_at_the_same_moment_remove_a_record_once() -> None:
    """Their removals share a step, in which each record occurs once."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await asyncio.gather(*(process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS))
    await process.commit(txn)
    stop = process.wire.stop(step("apply", "/txn-op/"))
    settlings = [asyncio.ensure_future(process.coordinator.settle(txn.txn_id)) for _ in range(3)]
    await stop.reached.wait()
    await run_ready()
    stop.go.set()
    await asyncio.gather(*settlings)
    assert world.operations() == 0


async def test_a_step_has_a_bounded_number_of_intents() -> None:
    """Operations that a coordinator has read for a settlement are forgotten afterwards."""
    world = World()
    world.coordinator_options = CoordinatorOptions()
    process = await world.process()
    txn = await process.begin()
    segments = [f"segment://public/default/wide-{at}/0000-ffff-0" for at in range(101)]
    for segment in segments:
        await process.buffer(segment)
    process.wire.steps.clear()
    await asyncio.gather(*(process.send("a", Branch(txn.txn_id, 0), segment) for segment in segments))
    assert puts(process.wire.steps) == [100, 1]
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert process.coordinator.operations.writes_of(txn.txn_id, segments[0]) is None


async def test_every_send_gets_an_error_of_its_own() -> None:
    """A shared error object would mix the tracebacks and notes of several tasks."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await other.abort(txn)
    sends = [process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS]
    told = await asyncio.gather(*sends, return_exceptions=True)
    assert len({id(error) for error in told}) == 5
    assert {str(error) for error in told} == {str(told[0])}
    assert {getattr(error, "txn_id", None) for error in told} == {txn.txn_id}


async def test_an_intent_that_the_store_refuses_fails_its_own_send_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An intent that is too large fails alone; the others are written."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for segment in SEGMENTS:
        await process.buffer(segment)
    wire: Any = process.wire
    apply = wire.apply

    async def refuse(step: Step) -> Applied:
        if any(b"wide-3" in put.value for put in step.puts):
            raise InvalidInput("too large")
        found: Applied = await apply(step)
        return found

    monkeypatch.setattr(wire, "apply", refuse)
    sends = [process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS]
    told = await asyncio.gather(*sends, return_exceptions=True)
    assert [isinstance(one, InvalidInput) for one in told] == [False, False, False, True, False]


async def test_two_processes_that_settle_together_take_few_steps() -> None:
    """A process whose step is refused reads the remaining records, instead of removing a hundred one by one."""
    world = World()
    world.buffer_options, world.coordinator_options = BufferOptions(), CoordinatorOptions()
    one, two = await world.process(), await world.process()
    txn = await one.begin()
    segments = [f"segment://public/default/wide-{at}/0000-ffff-0" for at in range(100)]
    await asyncio.gather(*(one.send("a", Branch(txn.txn_id, 0), segment) for segment in segments))
    await one.commit(txn)
    for process in (one, two):
        for segment in segments:
            await (await process.buffer(segment)).recover()
    two.wire.steps.clear()
    await asyncio.gather(one.coordinator.settle(txn.txn_id), two.coordinator.settle(txn.txn_id))
    assert world.operations() == 0
    assert sum(name in ("apply", "delete") for name, _ in two.wire.steps) < 50


async def test_a_commit_is_settled_without_a_step_of_its_segments() -> None:
    """The open buffers are notified, and one step removes all operations; closed buffers are not notified."""
    world = World()
    world.coordinator_options = CoordinatorOptions()
    process = await world.process()
    txn = await process.begin()
    await asyncio.gather(*(process.send("a", Branch(txn.txn_id, 0), segment) for segment in SEGMENTS))
    await process.commit(txn)
    process.wire.steps.clear()
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(5, 0)
    assert [name for name, _ in process.wire.steps] == ["scan", "apply"]
    operations = process.coordinator.operations
    buffer = await process.buffer(SEGMENTS[0])
    told: list[TxnID] = []
    operations.listen(SEGMENTS[1], told.append)
    await buffer.close()
    committed = msgspec.structs.replace(txn, state=State.COMMITTED, branches=frozenset({0}))
    writes = [
        StoredOperation(Record(Key(segment), b"", 0), txn.txn_id, WriteOperation(0, segment, 1, "1:-1"))
        for segment in SEGMENTS[:2]
    ]
    assert operations.tell_committed(committed, writes) == ([writes[1]], [writes[0]])
    assert told == [txn.txn_id]
    # A buffer that has not found out whether the stores belong together is not told.
    del process.buffers[SEGMENTS[0]]
    opened = await process.buffer(SEGMENTS[0])
    assert operations.tell_committed(committed, writes) == ([writes[1]], [writes[0]])
    await opened.recover()
    assert operations.tell_committed(committed, writes) == (writes, [])
    # A branch that does not count needs an abort record first.
    uncounted = msgspec.structs.replace(committed, branches=frozenset({1}))
    assert operations.tell_committed(uncounted, writes) == ([], writes)
