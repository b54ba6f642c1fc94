"""Rules of begin and describe: ids are unique, and all processes know a transaction."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import OutcomeUnknown, TransactionNotFound
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model import Begin, Part, Participant, State, Transaction, TxnID
from txnframework.testing._suites._coordinator._case import (
    LOG_FAMILY,
    METADATA_FAMILY,
    CoordinatorRules,
    acknowledge,
    committed_entry,
    open_for,
    write,
)
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, begin, held_up, kill
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World

LOG_BIT = 0x8000


class BeginRules(CoordinatorRules):
    """A transaction begins once, with an id of its own."""

    async def test_keeps_the_interface(self) -> None:
        """The coordinator has all methods and attributes of its role."""
        from txnframework.plugin import verify_provider

        async with self.data.open() as world:
            verify_provider(ITransactionCoordinator, world.coordinator)
            assert world.coordinator.family in ("metadata", "log")

    async def test_open_after_begin(self) -> None:
        """After begin, a transaction is open in all processes, with the requested deadline and owner."""
        async with self.data.open() as world, self.data.open() as other:
            now_ms = self.data.now_ms()
            began = await world.coordinator.begin(Begin(TIMEOUT_MS, "ada", world.store.session))
            assert (began.state, began.created_ms, began.deadline_ms) == (State.OPEN, now_ms, now_ms + TIMEOUT_MS)
            assert (began.finalized_ms, began.principal, began.session) == (None, "ada", world.store.session)
            for process in (world, other):
                assert await process.coordinator.describe(began.txn_id) == began

    async def test_describe_unknown(self) -> None:
        """Describing a transaction that never began raises TransactionNotFound."""
        async with self.data.open() as world:
            known = await begin(world)
            with pytest.raises(TransactionNotFound):
                await world.coordinator.describe(TxnID(known.coordinator, known.number + 10**6))

    async def test_ids_count_up(self) -> None:
        """In one process, successive transactions have growing numbers and the same coordinator id."""
        async with self.data.open() as world:
            ids = [await begin(world) for _ in range(10)]
            assert len({one.coordinator for one in ids}) == 1
            numbers = [one.number for one in ids]
            assert numbers == sorted(set(numbers))

    @requires(METADATA_FAMILY)
    async def test_ids_of_the_metadata_family(self) -> None:
        """The highest bit of the coordinator id is 0, which identifies the metadata family."""
        async with self.data.open() as world:
            assert not (await begin(world)).coordinator & LOG_BIT

    @requires(LOG_FAMILY)
    async def test_ids_of_the_log_family(self) -> None:
        """The highest bit of the coordinator id is 1, which identifies the log family."""
        async with self.data.open() as world:
            assert (await begin(world)).coordinator & LOG_BIT

    async def test_ids_of_racing_processes(self) -> None:
        """Processes that begin transactions at the same time never get the same id."""
        async with self.data.open() as world, self.data.open() as other, self.data.open() as third:
            processes = (world, other, third)
            ids = await asyncio.gather(*(begin(process) for _ in range(20) for process in processes))
            assert len(set(ids)) == 60

    async def test_ids_never_repeat(self) -> None:
        """
        Ids are never reused, even after a restart or a kill at any step of a begin.

        If this fails, check that numbers are durably reserved before the first of them is returned.
        """
        given: list[TxnID] = []
        step, finished = 0, False
        while not finished:
            step += 1
            async with self.data.open() as world:
                async with held_up(world.connection, step, open_for(world, TIMEOUT_MS)) as (task, reached):
                    finished = not reached
                    if finished:
                        given.append((await task).txn_id)
                    await kill(world, task)
                world.connection.restore()
                given += [await begin(world) for _ in range(3)]
            async with self.data.open() as world:
                given += [await begin(world) for _ in range(3)]
        assert len(set(given)) == len(given)

    async def test_begin_lost_replies(self) -> None:
        """A begin with a lost reply returns an open transaction or raises OutcomeUnknown, and nothing else."""
        given: list[TxnID] = []
        async with self.data.open() as other:
            for write_number in range(1, 5):
                async with self.data.open() as world:
                    world.connection.lose(write_number)
                    began = await self.began_or_unknown(world)
                    world.connection.restore()
                    if began is not None:
                        assert await other.coordinator.describe(began.txn_id) == began
                        given.append(began.txn_id)
                    given += [await begin(world), await begin(other)]
        assert len(set(given)) == len(given)

    async def began_or_unknown(self, world: World) -> Transaction | None:
        """Begin a transaction; return None if the outcome is unknown."""
        try:
            return await open_for(world, TIMEOUT_MS)
        except OutcomeUnknown:
            return None

    async def test_participants(self) -> None:
        """``describe`` returns the segments written to and the subscriptions acknowledged on, each once."""
        async with self.data.open() as world, self.data.open() as other:
            began = await open_for(world, TIMEOUT_MS)
            segment = world.buffer.segment
            both = frozenset({Participant(segment), Participant(segment, world.acks.subscription)})
            for _ in range(2):
                await world.coordinator.enlist(began.txn_id, both)
            plain = await begin(world)
            position = await write(world, plain)
            await abort(world, plain)
            await write(world, began.txn_id)
            await write(other, began.txn_id, branch=5)
            await acknowledge(world, began.txn_id, position)
            for process in (world, other):
                assert (await process.coordinator.describe(began.txn_id)).participants == both

    @requires(METADATA_FAMILY)
    async def test_parts(self) -> None:
        """
        In the metadata family, the branches that wrote or acknowledged are known per participant, for all processes.
        """
        async with self.data.open() as world, self.data.open() as other:
            position = await committed_entry(world)
            txn = await begin(world)
            await write(world, txn)
            await write(other, txn, branch=5)
            await acknowledge(other, txn, position, branch=5)
            segment = Participant(world.buffer.segment)
            subscription = Participant(world.buffer.segment, world.acks.subscription)
            for process in (world, other):
                found = await process.coordinator.describe(txn)
                assert found.parts == {Part(0, segment), Part(5, segment), Part(5, subscription)}
                assert found.branches is None
