"""Large transactions: a ledger of their own, from where no single marker could list them."""

from __future__ import annotations

import asyncio

import pytest
from sidecar_steps import (
    NAMES,
    begin,
    compacted,
    decided,
    entry,
    held,
    killed,
    send,
    stored,
    visible,
)
from sidecar_world import BUSY, LargeTransactions, SidecarInMemory

from txnframework.errors import OutcomeUnknown, TransactionConflict
from txnframework.model import (
    EARLIEST,
    Action,
    Branch,
    End,
    EntryRange,
    LedgerEntry,
    Limit,
    Position,
    TxnID,
    Visibility,
)
from txnframework.testing import WorldHarness
from txnframework.testing.world import SEGMENT, World
from txnframework_legacy.ledger_names import SIDECAR, ledger_name
from txnframework_sidecar.markers import Marker, Note, StoredRun, read_topic_entry
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import MessageRun, Span
from txnframework_sidecar.snapshots import snapshot_ledger, snapshot_of
from txnframework_sidecar.state import SidecarState, TopicState

MANY = Limit(1_000)


@pytest.fixture
def kind() -> type[WorldHarness]:
    return LargeTransactions


def own_name(txn: TxnID) -> str:
    return ledger_name(SIDECAR, SEGMENT, 1, f"own-{txn}")


async def has_own_ledger(world: World, txn: TxnID) -> bool:
    return own_name(txn) in await world.ledgers.list_names("sidecar:", "", 1_000)


async def in_topic(world: World) -> list[LedgerEntry]:
    return list(await world.ledger.read(EntryRange(EARLIEST, (await world.ledger.tail()).last_confirmed), MANY))


async def markers(world: World) -> list[Marker]:
    found = [read_topic_entry(one, SEGMENT) for one in await in_topic(world)]
    return [one for one in found if one is not None]


async def sent(world: World, txn: TxnID, messages: int, first: int = 1) -> list[str]:
    for sequence in range(first, first + messages):
        await send(world, sequence, txn)
    return [f"s{sequence}" for sequence in range(first, first + messages)]


@pytest.mark.parametrize("kind", [SidecarInMemory])
async def test_markers_name_its_ledger(harness: WorldHarness, world: World) -> None:
    """
    Between the sends of others its messages stand without a gap in a ledger of its own, and a marker names one span
    there, however many it lists; every process reads them, in their order.
    """
    async with harness.open() as other:
        large = await begin(world)
        expected = []
        for sequence in range(1, 2_500, 2):
            expected += await sent(world, large, 1, sequence)
            if sequence < 100:
                await send(other, 10_000 + sequence, await begin(other))
        await world.coordinator.end(End(large, Action.COMMIT))
        assert await stored(world, own_name(large)) == len(expected) - 1_000
        assert [(one.part.own, one.part.messages) for one in await markers(world)] == [(False, 1_000), (True, 250)]
        shared, own = (len(one.data) for one in await in_topic(world))
        assert own < 600 < shared
        for process in (world, other):
            assert await visible(process) == expected


async def test_a_large_one_stays_where_it_is(harness: WorldHarness, world: World) -> None:
    """Ids are the same before and after compaction, which leaves its ledger alone; that goes with its markers."""
    large, small = await begin(world), await begin(world)
    expected = await sent(world, large, 5)
    await send(world, 10, small)
    for txn in (small, large):
        await world.coordinator.end(End(txn, Action.COMMIT))
    expected = ["s10", *expected]
    before = await in_topic(world)
    await compacted(world)
    assert await in_topic(world) == before
    assert await visible(world) == expected
    async with harness.open() as fresh:
        assert await visible(fresh) == expected
        await fresh.buffer.trim(0)
        assert await stored(fresh, own_name(large)) == 4
        assert not await has_own_ledger(fresh, small)
        for sequence in (1, 5):
            assert not await send(fresh, sequence), "what was committed is recognized"
        await world.ledger.roll()
        await send(fresh, 20)
        last = await fresh.buffer.max_read_position()
        await fresh.buffer.trim(last.ledger_id)
        assert not await has_own_ledger(fresh, large)
        for sequence in (1, 5):
            assert not await send(fresh, sequence), "also when it is gone"


async def test_aborted_its_ledger_goes(harness: WorldHarness, world: World) -> None:
    """Nothing of it is read, what others wrote stays, and what it sent can be sent again."""
    large, other = await begin(world), await begin(world)
    await sent(world, large, 3)
    expected = await sent(world, other, 3, 10)
    await world.buffer.trim(0)
    assert await has_own_ledger(world, large), "it is open"
    await world.coordinator.end(End(large, Action.ABORT))
    async with harness.open() as fresh:
        await fresh.buffer.trim(0)
        assert not await has_own_ledger(world, large)
        assert await has_own_ledger(world, other)
        await sent(fresh, other, 1, 13)
        await world.coordinator.end(End(other, Action.COMMIT))
        assert await send(fresh, 2)
        assert await visible(world) == [*expected, "s13", "s2"]
    with pytest.raises(TransactionConflict):
        await send(world, 4, large)
    await world.buffer.trim(0)
    assert not await has_own_ledger(world, large)


async def test_killed_at_any_step_of_sending(harness: WorldHarness) -> None:
    """
    Killed before its ledger was made, before the messages stood there, before they were referred to, or behind: sent
    again by another process a message counts once, and nothing is left of it when the topic is trimmed.
    """
    async with harness.open() as other:
        step, reached, expected = 0, True, list[str]()
        while reached:
            step += 1
            txn = await begin(other)
            async with harness.open() as world:
                first = 100 * step
                expected += await sent(world, txn, 1, first)
                sending, reached = await held(world.connection, step, send(world, first + 1, txn))
                await killed(world, sending)
            await other.buffer.trim(0)
            expected += await sent(other, txn, 3, first + 1)
            assert not await send(other, first + 1, txn)
            await other.coordinator.end(End(txn, Action.COMMIT))
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"killed at step {step}"
        assert step > 5
        last = (await other.ledger.roll()).open_ledger_id
        await other.buffer.trim(last)
        assert len(await other.ledgers.list_names("sidecar:", "", 1_000)) <= 3


async def test_nobody_comes_to_refer_to_it(harness: WorldHarness) -> None:
    """A ledger that was made, and whose writer died before it referred to it, goes when its transaction is over."""
    async with harness.open() as other:
        for step in range(1, 12):
            txn = await begin(other)
            async with harness.open() as world:
                await send(world, 10 * step, txn)
                sending, _ = await held(world.connection, step, send(world, 10 * step + 1, txn))
                await killed(world, sending)
            await other.buffer.trim(0)
            await other.coordinator.end(End(txn, Action.ABORT))
            await other.buffer.trim(0)
            assert not await has_own_ledger(other, txn), f"killed at step {step}"


@pytest.mark.parametrize("meanwhile", ["open", "decided", "committed"])
async def test_trimmed_while_its_writer_is_held_up(meanwhile: str, harness: WorldHarness) -> None:
    """
    Held up at any step of a send while everything is trimmed, and its transaction goes on, was decided, or was
    committed: what is appended then either is listed in a marker or never counts, and no ledger of it stays.
    """
    async with harness.open() as other:
        step, reached, expected = 0, True, list[str]()
        while reached:
            step += 1
            txn = await begin(other)
            async with harness.open() as world:
                first = 100 * step
                pair = tuple(entry(sequence, Branch(txn)) for sequence in (first, first + 1))
                sending, reached = await held(world.connection, step, world.buffer.append(pair))
                ended = await decided(other, txn) if meanwhile == "decided" else None
                if meanwhile == "committed":
                    await other.coordinator.end(End(txn, Action.COMMIT))
                await compacted(other)
                world.connection.restore()
                await asyncio.gather(sending, return_exceptions=True)
            if ended is None:
                await other.coordinator.end(End(txn, Action.COMMIT))
            else:
                await other.buffer.settle(ended)
            for sequence in (first, first + 1):
                is_new = await send(other, sequence)
                assert not (is_new and meanwhile == "open"), "it was sent, and committed"
                expected.append(f"s{sequence}")
            await compacted(other)
            named = {one.txn_id for one in await markers(other) if one.part.own}
            assert await has_own_ledger(other, txn) == (txn in named)
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"held up at step {step}"


async def test_trimmed_while_it_is_written_and_ended(harness: WorldHarness) -> None:
    """Trimming pauses at any step while a large transaction is written and committed: the transaction can be read."""
    async with harness.open() as other:
        step, reached, after = 0, True, EARLIEST
        while reached:
            step += 1
            txn, dropped = await begin(other), await begin(other)
            expected = await sent(other, txn, 2, 100 * step)
            await sent(other, dropped, 2, 100 * step + 50)
            await other.coordinator.end(End(dropped, Action.ABORT))
            async with harness.open() as world:
                trimming, reached = await held(world.connection, step, world.buffer.trim(0))
                expected += await sent(other, txn, 2, 100 * step + 10)
                await other.coordinator.end(End(txn, Action.COMMIT))
                world.connection.restore()
                await trimming
                async with harness.open() as fresh:
                    for process in (world, other, fresh):
                        assert await visible(process, after) == expected, f"held up at step {step}"
            after = Position((await other.ledger.roll()).open_ledger_id, -1)
            await other.buffer.trim(after.ledger_id)


async def test_sent_again_it_stands_once(harness: WorldHarness, world: World) -> None:
    """
    Its reply lost, that the message stands in the ledger of its own or that it is referred to, sent again by whichever
    process: in the same transaction, in another one, or in none.
    """
    async with harness.open() as other:
        txn = await begin(world)
        await sent(world, txn, 2)
        for sequence, write in ((3, 1), (4, 2)):
            world.connection.lose(write)
            with pytest.raises(OutcomeUnknown):
                await send(world, sequence, txn)
            world.connection.restore()
            assert await send(other, sequence, txn) == (write == 1)
            assert not await send(world, sequence, txn)
            with pytest.raises(TransactionConflict):
                await send(other, sequence)
            with pytest.raises(TransactionConflict):
                await send(other, sequence, await begin(other))
        await world.coordinator.end(End(txn, Action.COMMIT))
        assert await visible(other) == ["s1", "s2", "s3", "s4"]
        assert not await send(other, 3), "it was committed"


async def test_killed_at_any_step_of_ending(harness: WorldHarness) -> None:
    """After a kill before or between its markers and its note, ending it again makes it visible once."""
    async with harness.open() as other:
        step, reached, expected = 0, True, list[str]()
        while reached:
            step += 1
            txn = await begin(other)
            expected += await sent(other, txn, 3, 10 * step)
            ended = await decided(other, txn)
            async with harness.open() as world:
                settling, reached = await held(world.connection, step, world.buffer.settle(ended))
                await killed(world, settling)
            await other.buffer.trim(0)
            await other.buffer.settle(ended)
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"killed at step {step}"


async def test_what_refers_to_it_stays_while_it_is_open(harness: WorldHarness, world: World) -> None:
    """
    A transaction whose first send is large already: the sidecar is trimmed behind it when it is over, and not before;
    a process that comes to know of its ledger goes on there.
    """
    txn = await begin(world)
    await world.buffer.append(tuple(entry(sequence, Branch(txn)) for sequence in (1, 2, 3)))
    for sequence in range(10, 40, 10):
        await world.coordinator.end(End(await begin(world), Action.COMMIT))
        small = await begin(world)
        await send(world, sequence, small)
        await world.coordinator.end(End(small, Action.COMMIT))
        await compacted(world)
    await snapshot_ledger(world.ledgers, NAMES.snapshots, BUSY).write(snapshot_of(TopicState(), SidecarState(BUSY)))
    async with harness.open() as fresh:
        await fresh.buffer.trim(0)
        await send(fresh, 4, txn)
        assert await stored(fresh, own_name(txn)) == 4
        await fresh.coordinator.end(End(txn, Action.COMMIT))
        assert await visible(fresh) == ["s10", "s20", "s30", "s1", "s2", "s3", "s4"]


def test_a_span_that_ends_behind_the_decision() -> None:
    """What was referred to behind the place up to which a marker lists never counts; what stands before it does."""
    state, branch = SidecarState(SidecarOptions()), Branch(TxnID(1 << 15, 1))

    def at(number: int) -> Position:
        return Position(7, number)

    for number in range(3):
        span = Span(3, number, number)
        state.apply(
            StoredRun(
                branch.txn_id, MessageRun(span, 0, "p", number, number, 1, 1, at(2 * number), at(2 * number), own=True)
            ),
            at(2 * number),
        )
    (together,) = state.writing[branch.txn_id]
    assert (together.span, together.begun, together.upto) == (Span(3, 0, 2), at(0), at(4))
    state.apply(Note(branch.txn_id, frozenset({0}), at(3), at(0)), at(5))
    assert [state.of_copy(branch, at(2 * number)) for number in range(3)] == [
        Visibility.COMMITTED,
        Visibility.COMMITTED,
        Visibility.ABORTED,
    ]
    assert state.aborted_before(7) == frozenset()
    assert state.aborted_before(8) == {branch}


async def test_branches_share_it(harness: WorldHarness, world: World) -> None:
    """What a branch wrote that does not count is passed over there; what counts is read in its order."""
    txn = await begin(world)
    for sequence in range(1, 7):
        await world.buffer.append((entry(sequence, Branch(txn, sequence % 2)),))
    await world.coordinator.end(End(txn, Action.COMMIT, branches=frozenset({1})))
    assert await visible(world) == ["s1", "s3", "s5"]
    await compacted(world)
    async with harness.open() as fresh:
        assert await visible(fresh) == ["s1", "s3", "s5"]
