"""Rules of settling, restarts and forgotten transactions."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, ConfigurationError, TransactionNotFound
from txnframework.interfaces import IInPlaceBuffer
from txnframework.model import Append, Branch, Transaction, TxnID, Visibility
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT
from txnframework.testing._suites._buffer._case import (
    TIMEOUT_MS,
    BufferRules,
    abort,
    begin,
    commit,
    held_up,
    send,
    skipped,
    visible,
)
from txnframework.testing.capabilities import requires


class RecoveryRules(BufferRules):
    """Each outcome takes effect once, in all processes, and later readers see it."""

    async def test_restart(self) -> None:
        """After a restart, a mix of plain, committed and aborted messages reads the same as before."""
        expected: list[str] = []
        async with self.data.open() as world:
            for number in range(10):
                await send(world, f"plain {number}")
                expected.append(f"plain {number}")
                txn = await begin(world)
                await send(world, f"inside {number}", txn)
                if number % 2:
                    await commit(world, txn)
                    expected.append(f"inside {number}")
                else:
                    await abort(world, txn)
            assert await visible(world) == expected
            end, passed_over = await world.buffer.max_read_position(), await skipped(world)
        async with self.data.open() as world:
            assert await world.buffer.recover() >= end
            assert await visible(world) == expected
            assert await skipped(world) == passed_over

    async def test_entries_of_another_family_are_refused(self) -> None:
        """
        Reading a message of another family's transaction raises ConfigurationError; it is neither returned nor skipped.

        If this fails, check that an id of another family is not treated as a forgotten transaction.
        """
        async with self.data.open() as world:
            log = world.coordinator.family == LOG_FAMILY
            branch = Branch(TxnID(0 if log else LOG_FAMILY_BIT, 1))
            data = encode_entry([EntryMessage(None, b"of another family", (), 0, 0)], "elsewhere", branch)
            await world.ledger.append((Append(data, 1, branch),), (await world.ledger.tail()).open_ledger_id)
            with pytest.raises(ConfigurationError):
                await visible(world)

    @requires(IInPlaceBuffer)
    async def test_open_transactions_survive(self) -> None:
        """Transactions that were open at a restart still hold back readers, and can be ended after it."""
        async with self.data.open() as world:
            kept, dropped = await begin(world), await begin(world)
            await send(world, "kept", kept)
            await send(world, "dropped", dropped)
            await send(world, "plain")
        async with self.data.open() as world:
            assert await visible(world) == []
            await commit(world, kept)
            assert await visible(world) in ([], ["kept"])
        async with self.data.open() as world:
            await abort(world, dropped)
            assert await visible(world) == ["kept", "plain"]

    async def test_answers_wait_for_the_recovery(self) -> None:
        """
        A call during the buffer's recovery, at any step of it, waits and returns a correct result.

        If this fails, check that all methods wait for the recovery before they read any state.
        """
        async with self.data.open() as other:
            txn = await begin(other)
            await send(other, "plain")
            await send(other, "inside", txn)
            step, reached = 0, True
            while reached:
                step += 1
                async with self.data.open() as fresh:
                    async with held_up(fresh.connection, step, fresh.buffer.recover()) as (recovering, reached):
                        asked = [
                            asyncio.ensure_future(fresh.buffer.resolve(Branch(txn))),
                            asyncio.ensure_future(visible(fresh)),
                        ]
                        await self.data.settle()
                        fresh.connection.restore()
                        answers = await asyncio.gather(*asked)
                        await recovering
                    assert answers == [Visibility.OPEN, ["plain"]], f"asked at step {step}"

    async def test_closing_while_recovering(self) -> None:
        """
        Closing at any step of the recovery does not wait for the store; calls that wait for the recovery get Closed.

        If this fails, check that a call tests after the recovery whether the buffer was closed.
        """
        async with self.data.open() as other:
            await send(other, "plain")
            step, reached = 0, True
            while reached:
                step += 1
                async with self.data.open() as fresh:
                    async with (
                        held_up(fresh.connection, step, fresh.buffer.recover()) as (recovering, reached),
                        self.started(send(fresh, "late")) as sending,
                    ):
                        if not reached:
                            continue
                        await self.soon(fresh.buffer.close())
                        for one in (recovering, sending):
                            with pytest.raises(Closed):
                                await self.soon(one)
                    assert await visible(other) == ["plain"], f"closed at step {step}"

    async def test_recover_may_be_repeated(self) -> None:
        """Recovery may be repeated without moving back, and reading needs no call of it."""
        async with self.data.open() as world:
            await send(world, "x")
            first = await world.buffer.recover()
            assert await world.buffer.recover() >= first
            assert await visible(world) == ["x"]
        async with self.data.open() as world:
            assert await visible(world) == ["x"]

    async def test_settle_in_any_order(self) -> None:
        """
        Settling has the same effect once or repeatedly, in any process, and before or after other transactions.

        If this fails, check that the abort record is stored before the operation is deleted. Deleting an absent
        operation must succeed.
        """
        async with self.data.open() as world, self.data.open() as other:
            ended: list[Transaction] = []
            expected: list[str] = []
            for number in range(6):
                txn = await begin(world)
                await send(world, f"zero {number}", txn)
                await send(other, f"six {number}", txn, 6)
                if number % 3 == 0:
                    ended.append(await abort(world, txn))
                else:
                    ended.append(await commit(other, txn, *((0, 6) if number % 3 == 1 else (0,))))
                    expected += [f"zero {number}", *([f"six {number}"] if number % 3 == 1 else [])]
            for process, order in ((other, ended[::-1]), (world, ended), (world, ended[::2]), (other, ended)):
                for one in order:
                    await process.buffer.settle(one)
                assert await visible(process) == expected
            await asyncio.gather(*(process.buffer.settle(one) for one in ended for process in (world, other)))
            assert await visible(world) == await visible(other) == expected
        async with self.data.open() as fresh:
            assert await visible(fresh) == expected

    async def test_settled_is_visible_at_once(self) -> None:
        """After settle has returned, the outcome is readable in this process without waiting for a watch."""
        async with self.data.open() as world:
            before = await world.buffer.max_read_position()
            txn = await begin(world)
            await send(world, "inside", txn)
            await world.buffer.settle(await commit(world, txn))
            assert await self.soon(world.buffer.advanced(before)) > before
            assert await visible(world, before) == ["inside"]

    async def test_coordinator_settles(self) -> None:
        """``settle`` of a coordinator makes the outcome take effect, and may be repeated."""
        async with self.data.open() as world:
            kept, dropped = await begin(world), await begin(world)
            await send(world, "kept", kept)
            await send(world, "dropped", dropped)
            await commit(world, kept)
            await abort(world, dropped)
            for txn in (kept, dropped, kept):
                assert (await world.coordinator.settle(txn)).left == 0
            assert await visible(world) == ["kept"]

    async def test_forgotten_transactions_stay_decided(self) -> None:
        """
        Long after a transaction was forgotten, its messages remain visible if committed, and invisible if aborted.

        If this fails, check that a transaction is forgotten only after its effect is durable: an unknown id means
        committed.
        """
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped = await begin(world), await begin(world)
            await send(world, "kept", kept)
            await send(other, "lost", kept, 6)
            await send(world, "dropped", dropped)
            await commit(world, kept)
            await abort(world, dropped)
            assert await visible(other) == ["kept"]
            await self.forget_ended(world)
            for txn in (kept, dropped):
                with pytest.raises(TransactionNotFound):
                    await world.coordinator.describe(txn)
            for process in (world, other):
                assert await visible(process) == ["kept"]
        async with self.data.open() as fresh:
            assert await visible(fresh) == ["kept"]

    @requires(IInPlaceBuffer)
    async def test_timed_out_transaction_releases(self) -> None:
        """
        After an abandoned transaction times out, it no longer holds back readers, and its messages are never visible.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            await send(world, "inside", txn)
            await send(world, "behind")
            await world.coordinator.expire(self.data.now_ms() + TIMEOUT_MS // 2)
            assert await visible(world) == []
            await world.coordinator.expire(self.data.now_ms() + TIMEOUT_MS * 60)
            assert await visible(world) == ["behind"]
