"""Publishing to a segment and reading it."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import (
    PUT_OPERATION,
    SEGMENT,
    Process,
    World,
    branch_of,
    entry,
    path_of,
    step,
    waiting,
)

from txnframework.errors import (
    Closed,
    EntryTrimmed,
    LedgerSealed,
    StoreMismatch,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import IPlannableBuffer
from txnframework.model import (
    EARLIEST,
    Branch,
    Expect,
    Limit,
    Position,
    Put,
    ReadRequest,
    TxnID,
    Visibility,
)
from txnframework.model.indexes import abort_indexes
from txnframework.model.paths import abort_record_key
from txnframework.model.records import AbortRecord, WriteOperation, encode
from txnframework.plugin import verify_provider
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.operations import put_operations, require_open

BOTH = pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "recheck"])


def test_it_keeps_the_contract_of_its_role() -> None:
    """verify_provider sees what zope does not."""

    async def main() -> None:
        verify_provider(IPlannableBuffer, await (await World().process()).buffer())

    asyncio.run(main())


# -- publishing ---------------------------------------------------------------------------------------


@BOTH
def test_a_transaction_is_invisible_until_it_commits_and_then_in_order(atomic: bool) -> None:
    """Messages that stand behind an open transaction wait for it; branches that are not listed never show."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, reader = await world.process(), await world.process()
        await process.send("a")
        txn = await process.begin()
        await process.send("b", branch_of(txn))
        await process.send("c", branch_of(txn, 7))
        await process.send("d", branch_of(txn, 8))
        await process.send("e")
        assert await reader.values() == ["a"]
        assert await reader.shown() == [
            ("a", "committed"), ("b", "open"), ("c", "open"), ("d", "open"), ("e", "committed")
        ]  # fmt: skip
        await process.commit(txn, 0, 8)
        for _ in range(2):
            assert await reader.values() == ["a", "b", "d", "e"]
            assert await (await world.process()).values() == ["a", "b", "d", "e"]
            assert (await reader.shown())[2] == ("c", "aborted")
            await process.coordinator.settle(txn.txn_id)
        page = await (await reader.buffer()).read(ReadRequest(EARLIEST, Limit(100)))
        assert page.skipped == (Position(1, 2),)

    asyncio.run(main())


@BOTH
def test_the_intent_is_put_before_the_first_entry_and_once_for_a_ledger(atomic: bool) -> None:
    """One record for each (branch, ledger), not one for each message."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        stop = process.wire.stop(PUT_OPERATION)
        sending = [await waiting(process.send(f"{at}", branch_of(txn))) for at in range(3)]
        assert stop.reached.is_set()
        assert (await (await process.ledger()).tail()).last_confirmed == Position(1, -1)
        stop.go.set()
        assert await asyncio.gather(*sending) == [Position(1, 0), Position(1, 1), Position(1, 2)]
        assert world.operations() == 1
        await process.send("x", branch_of(txn, 7))
        assert world.operations() == 2
        await (await process.ledger()).roll()
        assert await process.send("y", branch_of(txn)) == Position(2, 0)
        assert world.operations() == 3

    asyncio.run(main())


@BOTH
def test_a_send_on_a_transaction_that_has_ended_is_refused(atomic: bool) -> None:
    """Also when the branch wrote before and another process ended it; an unknown one is not found."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await other.abort(txn)
        for branch in (0, 7):
            with pytest.raises(TransactionConflict):
                await process.send("b", branch_of(txn, branch))
        with pytest.raises(TransactionNotFound):
            await process.send("b", Branch(TxnID(0, 999)))
        with pytest.raises(TransactionDomainMismatch):
            await process.send("b", Branch(TxnID(0x8000, 1)))
        assert (await (await process.ledger()).tail()).last_confirmed == Position(1, 0)
        assert world.operations() == 1

    asyncio.run(main())


@BOTH
def test_a_transaction_that_ends_while_the_intent_is_on_its_way_gets_no_entry(atomic: bool) -> None:
    """The batch's check refuses it, or the recheck finds it and withdraws."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(PUT_OPERATION)
        sending = await waiting(process.send("a", branch_of(txn)))
        await other.abort(txn)
        await other.coordinator.settle(txn.txn_id)
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await sending
        assert world.operations() == 0
        assert (await (await process.ledger()).tail()).last_confirmed == Position(1, -1)

    asyncio.run(main())


@BOTH
def test_an_intent_of_unknown_outcome_is_read_back(atomic: bool) -> None:
    """What stands is used, and the send succeeds."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        process.wire.lose_reply(PUT_OPERATION)
        await process.send("a", branch_of(txn))
        assert world.operations() == 1
        await process.commit(txn)
        assert await process.values() == ["a"]

    asyncio.run(main())


@BOTH
def test_an_intent_that_could_not_be_written_pins_nobody(atomic: bool) -> None:
    """Nothing that may be read is decided by what is in memory; a cancelled send leaves the buffer usable."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        process.wire.refuse(PUT_OPERATION)
        with pytest.raises(Unavailable):
            await process.send("a", branch_of(txn))
        stop = process.wire.stop(PUT_OPERATION)
        task = await waiting(process.send("b", branch_of(txn)))
        assert stop.reached.is_set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.send("c")
        assert await process.values() == ["c"]
        await process.send("d", branch_of(txn))
        await process.commit(txn)
        assert await process.values() == ["c", "d"]

    asyncio.run(main())


@BOTH
def test_a_writer_that_was_paused_never_appends_to_a_ledger_that_was_closed(atomic: bool) -> None:
    """Its intent names the ledger; the append is refused, and the branch is admitted to the next one."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        await other.send("x")
        txn = await process.begin()
        stop = process.wire.stop(PUT_OPERATION)
        sending = await waiting(process.send("a", branch_of(txn)))
        await (await other.ledger()).roll()
        stop.go.set()
        assert await sending == Position(2, 0)
        assert world.operations() == 2
        await other.abort(txn)
        await other.coordinator.settle(txn.txn_id)
        assert len(world.paths("/txn-aborted/")) == 2
        assert await other.values() == ["x"]

    asyncio.run(main())


def test_a_sealed_segment_takes_nothing_and_no_intent() -> None:
    """The producer routes the entry again."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await (await process.ledger()).seal()
        for branch in (0, 7):
            with pytest.raises(LedgerSealed):
                await process.send("b", branch_of(txn, branch))
        with pytest.raises(LedgerSealed):
            await process.send("b")
        assert world.operations() == 1
        await process.commit(txn)
        assert await process.values() == ["a"]

    asyncio.run(main())


def test_the_entries_of_one_call_are_of_one_branch() -> None:
    """Two branches could not be refused together."""

    async def main() -> None:
        process = await World().process()
        txn = await process.begin()
        with pytest.raises(ValueError, match="one branch"):
            await (await process.buffer()).append((entry("a"), entry("b", branch_of(txn))))

    asyncio.run(main())


def test_intents_are_remembered_for_a_bounded_number_of_writers() -> None:
    """Forgetting one costs another record and nothing else."""

    async def main() -> None:
        world = World()
        world.buffer_options = BufferOptions(intents_max=1)
        process = await world.process()
        txn = await process.begin()
        for number in (0, 7, 0, 7):
            await process.send(f"{number}", branch_of(txn, number))
        assert world.operations() == 4
        await process.commit(txn, 0, 7)
        assert await process.values() == ["0", "7", "0", "7"]

    asyncio.run(main())


def test_the_check_of_every_append_can_be_switched_off() -> None:
    """Then a further send costs no access to the metadata store at all; ending in this process is still noticed."""

    async def main() -> None:
        world = World()
        world.buffer_options = BufferOptions(check_every_append=False)
        process = await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        steps = len(process.wire.steps)
        await process.send("b", branch_of(txn))
        assert len(process.wire.steps) == steps
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        with pytest.raises(TransactionConflict):
            await process.send("c", branch_of(txn))

    asyncio.run(main())


# -- reading ------------------------------------------------------------------------------------------


def places(steps: list[tuple[str, object]]) -> list[str]:
    """Return what was done with which kind of record."""
    return [f"{name} {'' if what is None else path_of(what).strip('/').split('/')[0]}" for name, what in steps]


def test_reading_follows_the_order_that_is_the_rule() -> None:
    """The ledger's end, the intents, their headers; then the abort records of what is fetched."""

    async def main() -> None:
        world = World()
        process, reader = await world.process(), await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        buffer = await reader.buffer()
        await buffer.recover()
        ledger = await reader.ledger()
        tail, order = ledger.tail, reader.wire.steps

        async def noted() -> object:
            order.append(("tail", None))
            return await tail()

        ledger.tail = noted  # type: ignore[method-assign,assignment]
        expected = ["tail ", "scan_index writes-by-segment", "get txn"]
        order.clear()
        await buffer.max_read_position()
        assert places(order) == expected
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        txn = await process.begin()
        await process.send("b", branch_of(txn))
        order.clear()
        assert (await buffer.read(ReadRequest(Position(1, -1), Limit(3)))).skipped == (Position(1, 0),)
        assert places(order) == [*expected, "get txn-aborted"]

    asyncio.run(main())


def test_an_entry_that_is_settled_in_the_middle_of_a_reading_stays_hidden() -> None:
    """The abort record stands before the intent goes, and is read after it."""

    async def main() -> None:
        world = World()
        process, reader = await world.process(), await world.process()
        buffer = await reader.buffer()
        await buffer.recover()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.abort(txn)
        stop = reader.wire.stop(step("scan_index", "writes-by-segment"))
        reading = await waiting(reader.values())
        await process.coordinator.settle(txn.txn_id)
        assert world.operations() == 0
        stop.go.set()
        assert await reading == []

    asyncio.run(main())


def test_a_late_intent_never_moves_an_announced_position_back() -> None:
    """It names an earlier place, but has no entries there."""

    async def main() -> None:
        world = World()
        process, reader = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(PUT_OPERATION)
        late = await waiting(process.send("late", branch_of(txn)))
        for at in range(3):
            await reader.send(f"{at}")
        buffer = await reader.buffer()
        assert await buffer.max_read_position() == Position(1, 2)
        stop.go.set()
        await late
        assert await buffer.max_read_position() == Position(1, 2)
        assert await reader.values() == ["0", "1", "2"]
        newcomer = await world.process()
        assert await (await newcomer.buffer()).max_read_position() == Position(1, -1)
        await process.commit(txn)
        assert await newcomer.values() == ["0", "1", "2", "late"]
        assert await reader.values() == ["0", "1", "2", "late"]

    asyncio.run(main())


def test_only_the_headers_that_matter_are_read() -> None:
    """The lowest open intent decides; a thousand behind it cost nothing."""

    async def main() -> None:
        world = World()
        world.buffer_options = BufferOptions(headers_together_max=2)
        process, reader = await world.process(), await world.process()
        for at in range(8):
            txn = await process.begin()
            await process.send(f"{at}", branch_of(txn))
        reader.wire.steps.clear()
        assert await (await reader.buffer()).recover() == Position(1, -1)
        assert sum(name == "get" for name, _ in reader.wire.steps) == 2

    asyncio.run(main())


def test_old_ledgers_are_read_when_somebody_starts_there() -> None:
    """Aborted branches of closed ledgers are looked up when needed, settled or not, and a bounded number is kept."""

    async def main() -> None:
        world = World()
        world.buffer_options = BufferOptions(page_records=2, outcomes_max=1)
        process, reader = await world.process(), await world.process()
        expected = []
        for at in range(5):
            txn, other = await process.begin(), await process.begin()
            await process.send(f"aborted-{at}", branch_of(txn))
            await process.send(f"unsettled-{at}", branch_of(other))
            await process.send(f"plain-{at}")
            expected.append(f"plain-{at}")
            await process.abort(txn)
            await process.abort(other)
            await process.coordinator.settle(txn.txn_id)
            await (await process.ledger()).roll()
        for _ in range(2):
            assert await reader.values() == expected
        for txn_path in world.paths("/txn/"):
            await process.coordinator.settle(TxnID.parse(txn_path[5:]))
        assert await reader.values() == expected
        assert world.operations() == 0

    asyncio.run(main())


def test_what_is_known_of_a_branch_is_read_and_never_guessed() -> None:
    """Open, committed, not listed, aborted; after its header is gone by the abort record."""

    async def main() -> None:
        world = World()
        process = await world.process()
        buffer = await process.buffer()
        txn, aborted = await process.begin(), await process.begin()
        for number in (0, 7):
            await process.send("a", branch_of(txn, number))
        await process.send("a", branch_of(aborted))
        assert await buffer.resolve(branch_of(txn)) is Visibility.OPEN
        await process.commit(txn)
        await process.abort(aborted)
        for _ in range(2):
            assert await buffer.resolve(branch_of(txn)) is Visibility.COMMITTED
            assert await buffer.resolve(branch_of(txn, 7)) is Visibility.ABORTED
            assert await buffer.resolve(branch_of(aborted)) is Visibility.ABORTED
            await process.coordinator.collect(world.environment.now_ms() + 10**9)
            assert world.paths("/txn/") == []

    asyncio.run(main())


# -- plans --------------------------------------------------------------------------------------------


def test_a_plan_covers_a_range_with_the_aborted_branches_of_its_ledgers() -> None:
    """All that is needed to read it straight from the ledger."""

    async def main() -> None:
        world = World()
        process, reader = await world.process(), await world.process()
        branches = []
        for _ in range(3):
            txn = await process.begin()
            await process.send("a", branch_of(txn))
            await process.abort(txn)
            branches.append(branch_of(txn))
            await (await process.ledger()).roll()
        await process.coordinator.settle(branches[0].txn_id)
        buffer = await reader.buffer()
        plan = await buffer.plan(EARLIEST, Position(3, 0))
        assert plan.aborted == frozenset(branches)
        assert (await buffer.plan(Position(1, 0), Position(2, 0))).aborted >= {branches[1]}
        assert (await buffer.plan(Position(3, 0), Position(3, 0))).entries.after == Position(3, 0)

    asyncio.run(main())


async def late_writer(world: World) -> tuple[Process, object, Process]:
    """Return a writer whose intent names a place before what another process announced, and a newcomer."""
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    late = await waiting(process.send("late", branch_of(txn)))
    await reader.send("a")
    assert await (await reader.buffer()).max_read_position() == Position(1, 0)
    stop.go.set()
    await late
    return process, txn, await world.process()


def test_a_range_that_was_planned_once_is_never_shortened() -> None:
    """A process that computes less waits until it gets there."""

    async def main() -> None:
        world = World()
        process, txn, newcomer = await late_writer(world)
        buffer = await newcomer.buffer()
        planning = await waiting(buffer.plan(EARLIEST, Position(1, 0)))
        assert not planning.done()
        await process.abort(txn)  # type: ignore[arg-type]
        plan = await planning
        assert plan.entries.upto == Position(1, 0)
        assert plan.aborted == {branch_of(txn)}  # type: ignore[arg-type]

    asyncio.run(main())


def test_waiting_for_a_range_is_bounded() -> None:
    """Then it raises; it is still not shortened, and asking again later works."""

    async def main() -> None:
        world = World()
        process, txn, newcomer = await late_writer(world)
        buffer = await newcomer.buffer()
        planning = await waiting(buffer.plan(EARLIEST, Position(1, 0)))
        await world.environment.advance(30_000)
        with pytest.raises(Unavailable):
            await planning
        await process.commit(txn)  # type: ignore[arg-type]
        assert (await buffer.plan(EARLIEST, Position(1, 0))).aborted == frozenset()

    asyncio.run(main())


def test_a_plan_of_what_is_not_there_is_refused() -> None:
    """Beyond the ledger's end: it was planned on another store. Before its beginning: it was trimmed."""

    async def main() -> None:
        process = await World().process()
        for _ in range(3):
            await process.send("a")
            await (await process.ledger()).roll()
        buffer = await process.buffer()
        with pytest.raises(StoreMismatch, match="space-1"):
            await buffer.plan(EARLIEST, Position(9, 0))
        await buffer.trim(3)
        with pytest.raises(EntryTrimmed):
            await buffer.plan(EARLIEST, Position(3, 0))
        with pytest.raises(EntryTrimmed):
            await process.values()
        assert await process.values(Position(2, 0)) == ["a"]

    asyncio.run(main())


# -- belonging ----------------------------------------------------------------------------------------


def test_a_ledger_that_ends_before_an_intent_is_refused() -> None:
    """Ledger or metadata store was restored from a backup; both are named."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        document = WriteOperation(branch=0, segment=SEGMENT, ledger=1, after="1:5")
        await put_operations(process.wire, await require_open(process.wire, txn.txn_id), [document], 10)
        buffer = await process.buffer()
        with pytest.raises(StoreMismatch, match=r"1:5.*space-1.*1:-1"):
            await buffer.recover()
        with pytest.raises(StoreMismatch):
            await process.values()

    asyncio.run(main())


@pytest.mark.parametrize(("ledger", "after"), [(1, "1:5"), (4, "1:-1")])
def test_a_ledger_that_ends_before_an_abort_record_is_refused(ledger: int, after: str) -> None:
    """By its ledger or by its bound."""

    async def main() -> None:
        process = await World().process()
        key = abort_record_key(SEGMENT, ledger, TxnID(0, 5), 0)
        record = AbortRecord(after=after)
        await process.wire.put(Put(key, encode(record), Expect.ABSENT, abort_indexes(SEGMENT, ledger, record)))
        with pytest.raises(StoreMismatch):
            await (await process.buffer()).recover()

    asyncio.run(main())


def test_a_healthy_busy_pair_is_never_refused() -> None:
    """What the metadata store says is read before the ledger's end, which only grows."""

    async def main() -> None:
        world = World()
        process, opener = await world.process(), await world.process()
        await process.send("a")
        stop = opener.wire.stop(step("scan_index", "writes-by-segment"))
        recovering = await waiting((await opener.buffer()).recover())
        assert stop.reached.is_set()
        await process.send("b")
        txn = await process.begin()
        await (await process.ledger()).roll()
        await process.send("c", branch_of(txn))
        stop.go.set()
        assert await recovering == Position(1, 1)

    asyncio.run(main())


def test_a_pair_that_aborts_while_it_is_opened_is_not_refused() -> None:
    """An abort record beyond where the ledger ended just before is compared with where it ends now."""

    async def main() -> None:
        world = World()
        process, opener = await world.process(), await world.process()
        await process.send("a")
        stop = opener.wire.stop(step("scan_index", "aborts-by-bound"))
        recovering = await waiting((await opener.buffer()).recover())
        assert stop.reached.is_set()
        await process.send("b")
        txn = await process.begin()
        await process.send("c", branch_of(txn))
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        stop.go.set()
        assert await recovering == Position(1, 2)
        assert await opener.values() == ["a", "b"]

    asyncio.run(main())


def test_a_failed_recovery_can_be_repeated() -> None:
    """The next call reads again; nothing spins and nothing is half open."""

    async def main() -> None:
        process = await World().process()
        process.wire.refuse(step("scan_index", "writes-by-segment"))
        with pytest.raises(Unavailable):
            await process.send("a")
        await process.send("b")
        assert await process.values() == ["b"]

    asyncio.run(main())


def test_sends_that_wait_for_recovery_keep_their_order() -> None:
    """They go on in the order of the calls."""

    async def main() -> None:
        process = await World().process()
        stop = process.wire.stop(step("scan_index", "writes-by-segment"))
        await process.buffer()
        sends = [asyncio.ensure_future(process.send(f"{at}")) for at in range(5)]
        await stop.reached.wait()
        stop.go.set()
        await asyncio.gather(*sends)
        assert await process.values() == [f"{at}" for at in range(5)]

    asyncio.run(main())


def test_a_closed_buffer_says_so() -> None:
    """Every call raises Closed; closing may be repeated."""

    async def main() -> None:
        process = await World().process()
        buffer = await process.buffer()
        await buffer.close()
        await buffer.close()
        for call in (buffer.recover(), buffer.max_read_position(), buffer.advanced(EARLIEST), process.send("a")):
            with pytest.raises(Closed):
                await call

    asyncio.run(main())
