"""Outcomes made durable in a segment, and what is trimmed."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import OTHER_SEGMENT, PUT_OPERATION, World, branch_of, step, waiting

from txnframework.config import TransactionsSection
from txnframework.errors import TransactionConflict, Unavailable
from txnframework.model import EARLIEST, Append, Appended, Position, Swept
from txnframework.model.paths import abort_record_of
from txnframework_metadata._options import BufferOptions

WRITE_ABORT = step("put", "/txn-aborted/")


def test_an_abort_record_stands_before_the_intent_goes() -> None:
    """If it cannot be written nothing is deleted; repeating it finishes."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        ended = await process.abort(txn)
        buffer = await process.buffer()
        process.wire.refuse(WRITE_ABORT)
        with pytest.raises(Unavailable):
            await buffer.settle(ended)
        assert world.operations() == 1
        stop = process.wire.stop(step("apply delete", "/txn-op/"))
        settling = await waiting(buffer.settle(ended))
        assert stop.reached.is_set()
        assert len(world.paths("/txn-aborted/")) == 1
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        for _ in range(2):
            await buffer.settle(ended)
        assert world.operations() == 0
        assert await process.values() == []

    asyncio.run(main())


@pytest.mark.parametrize("atomic", [True, False])
def test_settling_touches_this_segment_only_and_each_branch_by_its_outcome(atomic: bool) -> None:
    """Branches that count leave nothing, the others one abort record for each ledger."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        for number in (0, 7, 8):
            await process.send("a", branch_of(txn, number))
        await (await process.ledger()).roll()
        await process.send("b", branch_of(txn, 8))
        await process.send("c", branch_of(txn), OTHER_SEGMENT)
        ended = await process.commit(txn, 0, 7)
        await (await process.buffer()).settle(ended)
        assert world.operations() == 1
        aborted = [abort_record_of(path)[1::2] for path in world.paths("/txn-aborted/")]
        assert aborted == [(1, 8), (2, 8)]

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["put /txn-aborted/", "apply delete /txn-op/"])
def test_a_lost_reply_while_settling_is_repeated_without_harm(lost: str) -> None:
    """Every step may be repeated by anybody."""

    async def main() -> None:
        world = World()
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.abort(txn)
        names, _, prefix = lost.rpartition(" ")
        process.wire.lose_reply(step(names, prefix))
        await process.coordinator.settle(txn.txn_id)
        await other.coordinator.settle(txn.txn_id)
        assert world.operations() == 0
        assert await other.values() == []

    asyncio.run(main())


def test_two_processes_settle_one_transaction_at_the_same_time() -> None:
    """Leases only save work."""

    async def main() -> None:
        world = World()
        processes = [await world.process() for _ in range(3)]
        txn = await processes[0].begin()
        for number in range(5):
            await processes[0].send("a", branch_of(txn, number))
        await processes[0].commit(txn, 0, 1)
        await asyncio.gather(*(process.coordinator.settle(txn.txn_id) for process in processes))
        assert world.operations() == 0
        assert await processes[1].values() == ["a", "a"]

    asyncio.run(main())


def test_only_an_ended_transaction_is_settled() -> None:
    """An open one has no outcome yet."""

    async def main() -> None:
        process = await World().process()
        txn = await process.begin()
        with pytest.raises(ValueError, match="OPEN"):
            await (await process.buffer()).settle(txn)
        with pytest.raises(ValueError, match="OPEN"):
            await process.pending_acks().settle(txn)

    asyncio.run(main())


def test_nothing_is_trimmed_that_an_open_transaction_may_still_commit() -> None:
    """Trimming stops at the max read position, whole ledgers at a time."""

    async def main() -> None:
        process = await World().process()
        ledger = await process.ledger()
        await process.send("a")
        await ledger.roll()
        txn = await process.begin()
        await process.send("b", branch_of(txn))
        await ledger.roll()
        await process.send("c")
        buffer = await process.buffer()
        await buffer.trim(3)
        assert await process.values(Position(2, -1)) == []
        await process.commit(txn)
        assert await process.values(Position(2, -1)) == ["b", "c"]
        await buffer.trim(3)
        assert await process.values(Position(3, -1)) == ["c"]

    asyncio.run(main())


def test_an_abort_record_outlives_its_ledger_by_the_retention() -> None:
    """Entries that were fetched before the ledger was trimmed are still judged by it."""

    async def main() -> None:
        world = World(transactions=TransactionsSection(abort_retention_ms=1_000))
        process = await world.process()
        for _ in range(2):
            txn = await process.begin()
            await process.send("a", branch_of(txn))
            await process.abort(txn)
            await process.coordinator.settle(txn.txn_id)
            await (await process.ledger()).roll()
        buffer = await process.buffer()
        due_ms = world.environment.now_ms() + 1_000
        assert await buffer.trim(2) == Swept(0, 0, due_ms)
        assert len(world.paths("/txn-aborted/")) == 2
        await world.environment.advance(999)
        assert await buffer.trim(2) == Swept(0, 0, due_ms)
        await world.environment.advance(1)
        assert await buffer.trim(2) == Swept(1, 0, None)
        assert [abort_record_of(path)[1] for path in world.paths("/txn-aborted/")] == [2]
        assert await process.values(Position(2, -1)) == []
        assert (await buffer.plan(Position(2, -1), Position(2, 0))).aborted
        assert await buffer.max_read_position() > EARLIEST

    asyncio.run(main())


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "recheck"])
def test_an_intent_that_stands_is_never_withdrawn(atomic: bool) -> None:
    """
    A later intent that reads the same and was not written gives nobody the right to remove the first one.

    The first send was cancelled and its entry arrives late; without the intent nobody would record that it is aborted.
    """

    async def main() -> None:
        world = World(atomic=atomic, transactions=TransactionsSection(max_clock_skew_ms=0, retention_ms=1_000))
        world.buffer_options = BufferOptions(page_records=3, intents_max=1)
        process, other = await world.process(), await world.process()
        txn, second = await process.begin(1_000), await process.begin()
        ledger = await process.ledger()
        append = ledger.append
        under_way: list[tuple[tuple[Append, ...], int | None]] = []

        async def slow(entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
            under_way.append((entries, ledger_id))
            return await asyncio.get_running_loop().create_future()

        ledger.append = slow  # type: ignore[method-assign]
        sending = await waiting(process.send("zombie", branch_of(txn, 9)))
        sending.cancel()
        other_sending = await waiting(process.send("evicts the intent", branch_of(second)))
        other_sending.cancel()
        await asyncio.gather(sending, other_sending, return_exceptions=True)
        ledger.append = append  # type: ignore[method-assign]

        stop = process.wire.stop(PUT_OPERATION)
        again = await waiting(process.send("second", branch_of(txn, 9)))
        assert stop.reached.is_set()
        await append(*under_way[0])
        await world.environment.advance(5_000)
        await other.coordinator.expire(world.environment.now_ms())
        process.wire.drop(PUT_OPERATION)
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await again
        await process.abort(second)
        await world.environment.advance(100_000)
        for _ in range(10):
            await other.coordinator.collect(world.environment.now_ms())
        assert world.paths("/txn/") == []
        assert await other.values() == []

    asyncio.run(main())
