"""Rules of add: of two transactions that acknowledge one message, at most one succeeds."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import NotTransactionOwner, TransactionConflict, TransactionNotFound
from txnframework.interfaces import IPendingAckStore
from txnframework.model import AckRequest, Begin, Branch, TxnID
from txnframework.model.ids import METADATA_FAMILY
from txnframework.testing._suites._pending_ack._case import PendingAckRules, add, at, deleted, is_free, single
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, begin, commit
from txnframework.testing.world import OTHER_SUBSCRIPTION


class AddRules(PendingAckRules):
    """Acknowledgments are pending until their transaction ends, and exclude each other."""

    async def test_keeps_the_interface(self) -> None:
        """The pending-ack store has all methods and attributes of its role."""
        from txnframework.plugin import verify_provider

        async with self.data.open() as world:
            verify_provider(IPendingAckStore, world.acks)
            assert (world.acks.segment, world.acks.subscription) == (world.buffer.segment, world.cursor.subscription)

    async def test_takes_effect_with_the_commit(self) -> None:
        """
        While the transaction is open, the cursor does not move; after its commit was settled, the messages are
        acknowledged.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await add(world, txn, *single(0, 2))
            assert await deleted(world, at(0), at(1), at(2)) == [False, False, False]
            ended = await commit(world, txn)
            await other.acks.settle(ended)
            for process in (world, other):
                assert await deleted(process, at(0), at(1), at(2)) == [True, False, True]

    async def test_abort_gives_back(self) -> None:
        """Messages of an aborted transaction are not acknowledged, and may be acknowledged again, settled or not."""
        async with self.data.open() as world, self.data.open() as other:
            for settles in (False, True):
                first, second = await begin(world), await begin(other)
                await add(world, first, *single(0))
                ended = await abort(world, first)
                if settles:
                    await world.acks.settle(ended)
                assert await deleted(world, at(0)) == [False]
                await add(other, second, *single(0))
                await other.acks.settle(await abort(other, second))

    async def test_conflict(self) -> None:
        """
        A message held by an open transaction cannot be acknowledged by another in any process.

        The error names the holder, and nothing of the request is recorded.
        """
        async with self.data.open() as world, self.data.open() as other:
            holder = await begin(world)
            await add(world, holder, *single(1))
            for process in (world, other):
                late = await begin(process)
                with pytest.raises(TransactionConflict) as refused:
                    await add(process, late, *single(0, 1, 2))
                assert (refused.value.txn_id, refused.value.other) == (late, holder)
                await process.acks.settle(await commit(process, late))
                assert await deleted(world, at(0), at(1), at(2)) == [False, False, False]
                assert await is_free(world, *single(0, 2))

    async def test_committed_counts_before_it_is_settled(self) -> None:
        """
        Messages of a committed transaction are acknowledged from the commit on, before any process has settled it.
        """
        async with self.data.open() as world, self.data.open() as other:
            first = await begin(world)
            await add(world, first, *single(0))
            ended = await commit(world, first)
            for process in (world, other):
                assert not await is_free(process, *single(0))
            await other.acks.settle(ended)
            for process in (world, other):
                assert not await is_free(process, *single(0))
                assert await is_free(process, *single(1))

    async def test_branch_that_does_not_count(self) -> None:
        """The acknowledgments of a branch that the commit does not list are dropped."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await add(world, txn, *single(0))
            await add(other, txn, *single(1), branch=5)
            await add(other, txn, *single(2), branch=6)
            ended = await commit(world, txn, 0, 5)
            assert await is_free(other, *single(2))
            assert not await is_free(other, *single(1))
            await world.acks.settle(ended)
            assert await deleted(other, at(0), at(1), at(2)) == [True, True, False]
            assert await is_free(other, *single(2))

    async def test_same_again(self) -> None:
        """
        Repeating an acknowledgment in the same branch succeeds and takes effect once, also within a longer request.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            for request in (single(0), single(0), single(0, 1), single(1)):
                await add(world, txn, *request)
            await world.acks.settle(await commit(world, txn))
            assert await deleted(world, at(0), at(1)) == [True, True]

    async def test_repeated_and_aborted(self) -> None:
        """An abort drops an acknowledgment, however often it was repeated."""
        async with self.data.open() as world:
            txn = await begin(world)
            for _ in range(3):
                await add(world, txn, *single(0))
            await world.acks.settle(await abort(world, txn))
            assert await is_free(world, *single(0))

    async def test_ended_transaction(self) -> None:
        """Acknowledging in a transaction that has ended raises TransactionConflict and records nothing."""
        async with self.data.open() as world, self.data.open() as other:
            for end in (commit, abort):
                txn = await begin(world)
                ended = await end(world, txn)
                for process in (world, other):
                    with pytest.raises(TransactionConflict):
                        await add(process, txn, *single(0))
                await world.acks.settle(ended)
                assert await deleted(world, at(0)) == [False]
                assert await is_free(world, *single(0))

    async def test_unknown_transaction(self) -> None:
        """Acknowledging in a transaction that never began raises TransactionNotFound and records nothing."""
        async with self.data.open() as world:
            known = await begin(world)
            with pytest.raises(TransactionNotFound):
                await add(world, TxnID(known.coordinator, known.number + 10**6), *single(0))
            assert await is_free(world, *single(0))

    async def test_principals(self) -> None:
        """
        Only its principal may acknowledge in a transaction that has one; for other callers nothing is recorded.

        A transaction without a principal may be used by any caller that knows its id.
        """
        async with self.data.open() as world, self.data.open() as other:
            owned = (await world.coordinator.begin(Begin(TIMEOUT_MS, "ada"))).txn_id
            for process in (world, other):
                for principal in ("", "eve"):
                    with pytest.raises(NotTransactionOwner):
                        await process.acks.add(AckRequest(Branch(owned), single(0), 1, principal=principal))
                    assert await is_free(process, *single(0))
            await other.acks.add(AckRequest(Branch(owned), single(0), 1, principal="ada"))
            assert not await is_free(world, *single(0))
            anybody = await begin(world)
            await world.acks.add(AckRequest(Branch(anybody), single(1), 1, principal="eve"))

    async def test_cursor_has_passed(self) -> None:
        """Acknowledging a message is a conflict if the cursor has it, singly or below its mark-delete position."""
        async with self.data.open() as world:
            await world.cursor.apply(1, (*single(0, 1), *single(5)), None)
            txn = await begin(world)
            for entry in (0, 1, 5):
                with pytest.raises(TransactionConflict):
                    await add(world, txn, *single(entry))
            await add(world, txn, *single(2, 4, 6))

    async def test_other_incarnation(self) -> None:
        """
        After a seek, acknowledgments of messages received before it are a conflict; those received after it are not.
        """
        async with self.data.open() as world:
            before = await begin(world)
            await add(world, before, *single(0))
            await world.cursor.seek(at(-1))
            for incarnation in (1, 3):
                txn = await begin(world)
                with pytest.raises(TransactionConflict):
                    await add(world, txn, *single(1), incarnation=incarnation)
            await add(world, txn, *single(0), incarnation=2)

    async def test_two_subscriptions(self) -> None:
        """Subscriptions of one segment are independent, in one transaction or in two."""
        async with self.data.open() as world:
            other = world.participants.subscriptions[OTHER_SUBSCRIPTION]
            first, second = await begin(world), await begin(world)
            await add(world, first, *single(0))
            await other.acks.add(AckRequest(Branch(second), single(0), 1))
            await other.acks.add(AckRequest(Branch(first), single(1), 1))
            committed = await commit(world, first)
            await world.acks.settle(committed)
            assert await deleted(world, at(0), at(1)) == [True, False]
            if world.coordinator.family == METADATA_FAMILY:  # the log family's commit has settled it
                assert not (await other.cursor.load()).deleted
            await other.acks.settle(committed)
            assert await deleted(world, at(0), at(1)) == [True, False]
            assert tuple((await other.cursor.load()).deleted) == ((at(1), at(1)),)
            assert set((await other.acks.recover()).open) == {second}

    async def test_one_of_many_wins(self) -> None:
        """Of many transactions of one process that acknowledge one message at the same time, exactly one succeeds."""
        async with self.data.open() as world:
            txns = [await begin(world) for _ in range(8)]
            answers = await asyncio.gather(*(add(world, txn, *single(0)) for txn in txns), return_exceptions=True)
            assert answers.count(None) == 1
            assert all(isinstance(one, TransactionConflict) for one in answers if one is not None)

    async def test_many_positions(self) -> None:
        """A request of any length is recorded and takes effect as a whole."""
        async with self.data.open() as world:
            txn = await begin(world)
            await add(world, txn, *single(*range(0, 5_000, 2)))
            late = await begin(world)
            with pytest.raises(TransactionConflict):
                await add(world, late, *single(1, 4_998))
            await world.acks.settle(await commit(world, txn))
            cursor = await world.cursor.load()
            assert (cursor.mark_delete, len(cursor.deleted)) == (at(0), 2_499)
