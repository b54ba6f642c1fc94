"""Rules of stores that can be sealed before a store of another family serves the subscription."""

from __future__ import annotations

from typing import cast

import pytest

from txnframework.errors import TransactionConflict
from txnframework.interfaces import ISealablePendingAcks
from txnframework.testing._suites._pending_ack._case import PendingAckRules, add, at, deleted, settle, single
from txnframework.testing._suites._processes import abort, begin, commit, held_up, kill
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World


class SealRules(PendingAckRules):
    """Nothing is held after the seal that the seal did not return."""

    @requires(ISealablePendingAcks)
    async def test_sealed(self) -> None:
        """The seal returns what open transactions hold. Afterwards no process adds an acknowledgment."""
        async with self.data.open() as world, self.data.open() as other:
            holder, late = await begin(world), await begin(other)
            await add(world, holder, *single(0))
            assert set((await _sealable(other).seal()).open) == {holder}
            async with self.data.open() as fresh:
                for process in (world, other, fresh):
                    with pytest.raises(TransactionConflict):
                        await add(process, late, *single(1))
                assert set((await fresh.acks.recover()).open) == {holder}

    @requires(ISealablePendingAcks)
    async def test_sealed_before_the_first_acknowledgment(self) -> None:
        """A process that has the subscription open since before the seal cannot add the first acknowledgment."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(other)
            assert (await _sealable(world).seal()).open == {}
            with pytest.raises(TransactionConflict):
                await add(other, txn, *single(0))

    @requires(ISealablePendingAcks)
    async def test_ended_after_the_seal(self) -> None:
        """Transactions that end after the seal take effect once, and then the seal returns nothing."""
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped = await begin(world), await begin(world)
            await add(world, kept, *single(0))
            await add(world, dropped, *single(1))
            await _sealable(other).seal()
            for ended in (await commit(world, kept), await abort(other, dropped)):
                await settle(ended, world, other)
            for _ in range(2):
                assert (await _sealable(other).seal()).open == {}
            assert await deleted(world, at(0), at(1)) == [True, False]

    @requires(ISealablePendingAcks)
    async def test_killed_while_sealing(self) -> None:
        """After a kill at any step, the next seal returns everything that is held."""
        async with self.data.open() as survivor:
            kept, held = await begin(survivor), await begin(survivor)
            await add(survivor, kept, *single(0))
            await add(survivor, held, *single(1))
            await commit(survivor, kept)
            step, reached = 0, True
            while reached:
                step += 1
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, _sealable(world).seal()) as (task, reached),
                ):
                    await kill(world, task)
                async with self.data.open() as fresh:
                    assert set((await _sealable(fresh).seal()).open) == {held}
                    assert await deleted(fresh, at(0), at(1)) == [True, False]


def _sealable(world: World) -> ISealablePendingAcks:
    return cast(ISealablePendingAcks, world.acks)
