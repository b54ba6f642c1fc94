"""What happens between two steps of sending and ending."""

from __future__ import annotations

import asyncio

import pytest
from sidecar_steps import (
    NAMES,
    begin,
    decided,
    held,
    killed,
    send,
    steps_of,
    visible,
)
from sidecar_world import LargeTransactions, ShortLedgers, SidecarInMemory

from txnframework.errors import (
    EndTransactionTimeout,
    OutcomeUnknown,
)
from txnframework.model import (
    EARLIEST,
    Action,
    Append,
    Branch,
    End,
    EntryRange,
    Limit,
    Position,
    ReadRequest,
    Transaction,
)
from txnframework.testing import WorldHarness
from txnframework.testing.world import World


async def test_appended_and_the_reply_lost(harness: WorldHarness, world: World) -> None:
    """A message that is sent again in its transaction, from any process, is stored in the sidecar once."""
    async with harness.open() as other:
        txn = await begin(world)
        await send(world, 1, txn)
        world.connection.lose(1)
        with pytest.raises(OutcomeUnknown):
            await send(world, 2, txn)
        world.connection.restore()
        assert not await send(other, 2, txn)
        assert not await send(world, 2, txn)
        await world.coordinator.end(End(txn, Action.COMMIT))
        assert await visible(other) == ["s1", "s2"]
        assert not await send(other, 2), "it was committed"


@pytest.mark.parametrize("kind", [SidecarInMemory, LargeTransactions])
async def test_written_behind_the_decision(kind: type[WorldHarness], harness: WorldHarness) -> None:
    """
    An entry of a writer that was paused while its transaction was committed is listed in the marker or never read; sent
    again it is found if it is listed, and read once if it is not.
    """
    step, reached, sequence, expected = 0, True, 10, list[str]()
    async with harness.open() as other:
        while reached:
            step, sequence = step + 1, sequence + 10
            txn = await begin(other)
            async with harness.open() as world:
                await send(world, sequence, txn)
                sending, reached = await held(world.connection, step, send(world, sequence + 1, txn))
                await other.coordinator.end(End(txn, Action.COMMIT))
                world.connection.restore()
                await asyncio.gather(sending, return_exceptions=True)
            await send(other, sequence + 1)
            expected += [f"s{sequence}", f"s{sequence + 1}"]
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"held up at step {step}"


@pytest.mark.parametrize("kind", [SidecarInMemory, LargeTransactions])
async def test_written_while_it_is_ended(kind: type[WorldHarness], harness: WorldHarness) -> None:
    """The same between any two steps of ending, the last of which are after the markers and before the note."""
    step, reached, sequence, expected = 0, True, 10, list[str]()
    async with harness.open() as other:
        while reached:
            step, sequence = step + 1, sequence + 10
            txn = await begin(other)
            async with harness.open() as world, harness.open() as ending:
                await send(world, sequence, txn)
                appending = await steps_of(send(world, sequence + 5, txn), world.connection)
                sending, _ = await held(world.connection, appending, send(world, sequence + 1, txn))
                settling, reached = await held(ending.connection, step, ending.buffer.settle(await decided(other, txn)))
                world.connection.restore()
                await asyncio.gather(sending, return_exceptions=True)
                ending.connection.restore()
                await settling
            await send(other, sequence + 1)
            expected += [f"s{sequence}", f"s{sequence + 5}", f"s{sequence + 1}"]
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"held up at step {step}"


@pytest.mark.parametrize("kind", [ShortLedgers])
async def test_two_processes_end_at_once(harness: WorldHarness) -> None:
    """Held up at any step of ending while another process ends too: there may be two markers, and one is read."""
    step, reached, repeated, expected = 0, True, 0, list[str]()
    async with harness.open() as other:
        while reached:
            step += 1
            txn = await begin(other)
            await send(other, step, txn)
            ended = await decided(other, txn)
            async with harness.open() as world:
                settling, reached = await held(world.connection, step, world.buffer.settle(ended))
                before = (await other.ledger.tail()).last_confirmed
                await other.buffer.settle(ended)
                world.connection.restore()
                await settling
                after = (await other.ledger.tail()).last_confirmed
                repeated += len(await other.ledger.read(EntryRange(before, after), Limit(9))) > 1
                expected.append(f"s{step}")
                async with harness.open() as fresh:
                    for process in (world, other, fresh):
                        assert await visible(process) == expected, f"held up at step {step}"
            if step % 3 == 0:
                await other.ledger.roll()
        assert repeated, "no step was between looking and appending"


@pytest.mark.parametrize("kind", [ShortLedgers])
async def test_killed_between_marker_and_note(harness: WorldHarness) -> None:
    """After a kill at any step, and with both ledgers closed, ending the transaction again makes it visible once."""
    step, reached, expected = 0, True, list[str]()
    async with harness.open() as other:
        while reached:
            step += 1
            txn = await begin(other)
            await send(other, step, txn)
            ended = await decided(other, txn)
            async with harness.open() as world:
                settling, reached = await held(world.connection, step, world.buffer.settle(ended))
                await killed(world, settling)
            await send(other, 1_000 + step)
            is_marked = (await visible(other))[-2:] == [f"s{step}", f"s{1_000 + step}"]
            await other.ledger.roll()
            await (await other.ledgers.open(NAMES.sidecar)).roll()
            await send(other, 2_000 + step)
            for _ in range(2):
                await other.buffer.settle(ended)
            new = [f"s{step}", f"s{1_000 + step}", f"s{2_000 + step}"]
            expected += new if is_marked else [*new[1:], new[0]]
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"killed at step {step}"


async def marked_not_noted(harness: WorldHarness, other: World, sequence: int) -> Transaction:
    """Commit a transaction with a message; the process that settles it is killed between its marker and its note."""
    before = await other.buffer.max_read_position()
    txn = await begin(other)
    await send(other, sequence, txn)
    ended = await decided(other, txn)
    for step in range(1, 50):
        async with harness.open() as world:
            settling, _ = await held(world.connection, step, world.buffer.settle(ended))
            is_marked = await visible(other, before) == [f"s{sequence}"]
            await killed(world, settling)
        if is_marked:
            return ended
    raise AssertionError("no marker was written")


async def test_marked_and_trimmed_before_it_was_noted(harness: WorldHarness) -> None:
    """A commit whose marker was trimmed with the topic, and whose writer died before the note, never comes again."""
    async with harness.open() as other:
        ended = await marked_not_noted(harness, other, 1)
        await other.ledger.roll()
        await send(other, 2)
        last = await other.buffer.max_read_position()
        await other.buffer.trim(last.ledger_id)
        start = Position(last.ledger_id, -1)
        async with harness.open() as fresh:
            for process in (fresh, other):
                await process.buffer.settle(ended)
                assert await visible(process, start) == ["s2"]


async def test_killed_while_trimming_what_is_not_noted(harness: WorldHarness) -> None:
    """The same wherever trimming is killed: the note stands before the marker goes, not after it."""
    step, reached, sequence, trimmed = 0, True, 10, 0
    async with harness.open() as other:
        while reached:
            step, sequence = step + 1, sequence + 10
            ended = await marked_not_noted(harness, other, sequence)
            await other.ledger.roll()
            await send(other, sequence + 1)
            last = await other.buffer.max_read_position()
            async with harness.open() as world:
                trimming, reached = await held(world.connection, step, world.buffer.trim(last.ledger_id))
                await killed(world, trimming)
            (first,) = await other.ledger.ledgers(-1, 1)
            trimmed += reached and first.ledger_id == last.ledger_id
            async with harness.open() as fresh:
                for process in (fresh, other):
                    await process.buffer.settle(ended)
                    found = await visible(process, Position(last.ledger_id, -1))
                    assert found == [f"s{sequence + 1}"], f"killed at step {step}"
        assert trimmed, "it was never killed between trimming the topic and its end"


async def test_ending_on_a_sealed_topic_times_out(harness: WorldHarness, world: World) -> None:
    """The limit of the family: no marker can be written there, so the commit never takes effect."""
    txn = await begin(world)
    await send(world, 1, txn)
    await world.ledger.seal()
    ending = asyncio.ensure_future(world.coordinator.end(End(txn, Action.COMMIT)))
    await harness.settle()
    await harness.pass_time(harness.transactions.end_timeout_ms)
    with pytest.raises(EndTransactionTimeout):
        await ending
    assert await visible(world) == []


async def test_trimmed_while_it_is_read(harness: WorldHarness, world: World) -> None:
    """What was fetched before the topic was trimmed is read as it would have been: of two markers the first."""
    txn = await begin(world)
    await send(world, 1, txn)
    await world.coordinator.end(End(txn, Action.COMMIT))
    (marker,) = await world.ledger.read(EntryRange(EARLIEST, await world.buffer.max_read_position()), Limit(9))
    await world.ledger.append((Append(marker.data, 1, Branch(txn)),), marker.position.ledger_id)
    await world.buffer.max_read_position()
    reading = asyncio.ensure_future(world.buffer.read(ReadRequest(EARLIEST, Limit(9))))
    hold = world.connection.hold(2)  # the topic's entries were fetched, and those of the sidecar are about to be
    await hold.reached.wait()
    await world.buffer.trim((await world.ledger.roll()).open_ledger_id)
    world.connection.restore()
    assert [one.position for one in (await reading).entries] == [marker.position]
