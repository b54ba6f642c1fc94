"""Rules of events between two steps of a call: ends, kills, other processes and lost replies; and of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from txnframework.errors import OutcomeUnknown, TransactionConflict, TransactionNotFound, Unavailable
from txnframework.model import EARLIEST, Appended, Position, Transaction
from txnframework.testing._suites._buffer._case import (
    BufferRules,
    abort,
    begin,
    commit,
    held_up,
    kill,
    send,
    send_sequence,
    visible,
)
from txnframework.testing.world import World


async def answered(sending: Awaitable[object]) -> bool | None:
    """Return whether a send succeeded; None if the outcome is unknown."""
    try:
        await sending
    except (TransactionConflict, TransactionNotFound):
        return False
    except OutcomeUnknown:
        return None
    return True


async def settle_all(world: World, ended: list[Transaction]) -> None:
    """Settle transactions one after the other."""
    for one in ended:
        await world.buffer.settle(one)


class StepRules(BufferRules):
    """Confirmations are true and decisions are final, whatever happens between two steps of a call."""

    async def test_waiting_reads_nothing(self) -> None:
        """
        A reader that waits, behind an open transaction or at the end, makes no store calls while nothing changes.

        If this fails, check that ``advanced`` waits for a watch or an announcement and does not poll.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            await send(world, "inside", txn)
            for _ in range(2):
                beyond = await world.buffer.max_read_position()
                async with self.started(world.buffer.advanced(beyond)) as waiting:
                    # A watch may wake late, and once without a change; after that it must be quiet.
                    quiet = 0
                    for _ in range(20):
                        before = world.connection.steps
                        await self.data.settle()
                        quiet = quiet + 1 if world.connection.steps == before else 0
                    assert quiet >= 10
                    assert not waiting.done()
                await commit(world, txn)

    async def test_killed_while_sending(self) -> None:
        """
        After a kill at any step of a send, its message is invisible while the transaction is open and after its abort.

        If this fails, check that the intent is durable before the entry is appended.
        """
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(survivor)
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, send(world, "inside", txn)) as (task, reached),
                ):
                    await kill(world, task)
                async with self.data.open() as fresh:
                    assert await visible(fresh) == [], f"undecided and visible, killed at step {step}"
                await abort(survivor, txn)
                await self.forget_ended(survivor)
                assert await visible(survivor) == []

    async def test_ended_while_sending(self) -> None:
        """
        If its transaction is aborted, or committed without its branch, at any step of a send, its message is never
        visible.
        """
        async with self.data.open() as world, self.data.open() as other:
            for end in (abort, commit):
                step, reached = 0, True
                while reached:
                    step += 1
                    txn = await begin(other)
                    sending = answered(send(world, "inside", txn, branch=5))
                    async with held_up(world.connection, step, sending) as (task, reached):
                        ended = await end(other, txn)
                        await other.buffer.settle(ended)
                        await self.forget_ended(other)
                        world.connection.restore()
                        await task
                    await self.forget_ended(other)
                    async with self.data.open() as fresh:
                        for process in (world, other, fresh):
                            assert await visible(process) == [], f"ended at step {step}"

    async def test_settled_while_reading(self) -> None:
        """
        A reader never returns aborted messages, even if transactions end, settle and are forgotten between its steps.

        If this fails, check the order: the tail, then the operations, then their headers, then the abort records.
        """
        expected: list[str] = []
        last = EARLIEST
        async with self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                kept, dropped = await begin(other), await begin(other)
                await send(other, f"kept {step}", kept)
                await send(other, "dropped", dropped)
                async with self.data.open() as fresh:
                    # Entries of earlier rounds are not read again: the rules do not limit the steps that a reader
                    # needs.
                    async with held_up(fresh.connection, step, visible(fresh, last)) as (task, reached):
                        await other.buffer.settle(await abort(other, dropped))
                        await other.buffer.settle(await commit(other, kept))
                        await self.forget_ended(other)
                        fresh.connection.restore()
                        found = await task
                    assert found in ([], [f"kept {step}"]), f"held up at step {step}"
                    expected.append(f"kept {step}")
                    assert await visible(fresh) == await visible(other) == expected
                last = await other.buffer.max_read_position()

    async def test_written_while_reading(self) -> None:
        """
        A reader does not return what an open transaction writes between its steps, nor anything after it.

        If this fails, check that the last confirmed position is read before the operations.
        """
        last = EARLIEST
        async with self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(other)
                async with self.data.open() as fresh:
                    async with held_up(fresh.connection, step, visible(fresh, last)) as (task, reached):
                        await send(other, "inside", txn)
                        await send(other, "behind", txn)
                        fresh.connection.restore()
                        assert await task == [], f"written at step {step}"
                    assert await visible(fresh) == []
                await other.buffer.settle(await abort(other, txn))
                last = await other.buffer.max_read_position()

    async def test_killed_while_settling(self) -> None:
        """
        After a kill at any step of settling, aborted messages are never visible, whichever process forgets the
        transaction.

        If this fails, check the order: the abort record is stored before the operation is deleted.
        """
        expected: list[str] = []
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step += 1
                kept, dropped = await begin(survivor), await begin(survivor)
                await send(survivor, f"kept {step}", kept)
                await send(survivor, "lost", kept, 6)
                await send(survivor, "dropped", dropped)
                ended = [await abort(survivor, dropped), await commit(survivor, kept)]
                expected.append(f"kept {step}")
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, settle_all(world, ended)) as (task, reached),
                ):
                    await kill(world, task)
                await self.forget_ended(survivor)
                async with self.data.open() as fresh:
                    for process in (survivor, fresh):
                        assert await visible(process) == expected, f"killed at step {step}"

    async def test_lost_reply_while_sending(self) -> None:
        """
        A send with a lost reply is confirmed or raises OutcomeUnknown; after sending again, it is visible exactly once.
        """
        expected: list[str] = []
        async with self.data.open() as other:
            for write in (1, 2, 3):
                for in_transaction in (True, False):
                    async with self.data.open() as world:
                        txn = await begin(other) if in_transaction else None
                        sequence = 2 * write + in_transaction
                        world.connection.lose(write)
                        told = await answered(send_sequence(world, sequence, txn))
                        world.connection.restore()
                        assert told is not False
                        again: Appended = await send_sequence(other if told is None else world, sequence, txn)
                        assert again.duplicate or told is None
                        if txn is not None:
                            await commit(other, txn)
                    expected.append(f"s{sequence}")
            assert await visible(other) == expected

    async def test_cut_off_while_sending(self) -> None:
        """
        A send that is disconnected at any write raises OutcomeUnknown, or Unavailable only if nothing was appended.
        """
        async with self.data.open() as other:
            for write in (1, 2, 3):
                before = await other.ledger.tail()
                async with self.data.open() as world:
                    world.connection.cut_at(write)
                    told: bool | None = True
                    try:
                        told = await answered(send(world, "plain"))
                    except Unavailable:
                        told = False
                    world.connection.restore()
                is_there = (await other.ledger.tail()).last_confirmed > before.last_confirmed
                assert told is None or told is is_there

    async def test_rolled_over_while_sending(self) -> None:
        """If the ledger rolls at any step of a send, the message is written to the next ledger and visible once."""
        expected: list[str] = []
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(other)
                async with held_up(world.connection, step, send(world, str(step), txn)) as (task, reached):
                    await send(other, "plain")
                    await other.ledger.roll()
                    world.connection.restore()
                    await task
                await other.buffer.settle(await commit(other, txn))
                expected += ["plain", str(step)] if reached else [str(step), "plain"]
                assert sorted(await visible(world)) == sorted(await visible(other)) == sorted(expected)

    async def test_trimmed_and_forgotten(self) -> None:
        """After older ledgers were trimmed, aborted messages in the remaining ledgers are never visible."""
        async with self.data.open() as world:
            for _ in range(2):
                txn = await begin(world)
                await send(world, "dropped", txn)
                last = await send(world, "kept")
                await abort(world, txn)
                await world.coordinator.settle(txn)
                await world.ledger.roll()
            await self.forget_ended(world)
            await world.buffer.trim(last.ledger_id)
            start = Position(last.ledger_id, -1)
            assert await visible(world, start) == ["kept"]
            async with self.data.open() as fresh:
                assert await visible(fresh, start) == ["kept"]
                await asyncio.gather(*(fresh.buffer.trim(last.ledger_id) for _ in range(2)))
                assert await visible(fresh, start) == ["kept"]
