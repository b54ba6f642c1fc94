"""Settling, timing out, collecting."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import OTHER_SEGMENT, SEGMENT, SUBSCRIPTION, Process, World, branch_of, step

from txnframework.config import TransactionsSection
from txnframework.errors import InvalidTransactionState
from txnframework.model import (
    Ack,
    Begin,
    Key,
    OpenQuery,
    Participant,
    Position,
    Put,
    PutSequential,
    State,
    Step,
    SweepResult,
    TxnID,
)
from txnframework.model.paths import abort_record_of, all_operations_range, header_key, operations_prefix
from txnframework.model.records import AckDocument, AckOperation, TransactionHeader, WriteOperation, decode, encode
from txnframework.testing.clock import run_ready
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.records.headers import header_indexes
from txnframework_metadata.records.operations import operation_indexes

RETENTION = TransactionsSection(retention_ms=10_000, max_clock_skew_ms=500)


async def collect_all(process: Process) -> int:
    """Collect until nothing is left to do now; return how much was done."""
    done = 0
    for _ in range(20):
        swept = await process.coordinator.collect(process.world.environment.now_ms())
        done += swept.done
        if not swept.left:
            break
    return done


async def test_deadlines_are_kept_with_the_clock_skew_to_spare() -> None:
    """A transaction is aborted once it is overdue on every host's clock; the sweep says when the next one is due."""
    world = World()
    process = await world.process()
    short, long = await process.begin(1_000), await process.begin(5_000)
    start_ms = world.environment.now_ms()
    assert await process.coordinator.expire(start_ms + 1_499) == SweepResult(0, 0, start_ms + 1_500)
    assert await process.coordinator.expire(start_ms + 1_500) == SweepResult(1, 0, start_ms + 5_500)
    assert (await process.coordinator.describe(short.txn_id)).state is State.ABORTED
    assert (await process.coordinator.describe(long.txn_id)).state is State.OPEN
    await process.commit(long)
    assert await process.coordinator.expire(start_ms + 99_999) == SweepResult(0, 0, None)


async def test_a_sweep_aborts_whoever_owns_it_and_a_bounded_number() -> None:
    """The sweep reports the remaining ones, so that the next sweep comes soon."""
    world = World(transactions=TransactionsSection(sweep_transactions_max=2, max_clock_skew_ms=0))
    process = await world.process()
    for _ in range(3):
        await process.coordinator.begin(Begin(1_000, "ada"))
    now_ms = world.environment.now_ms() + 1_000
    assert await process.coordinator.expire(now_ms) == SweepResult(2, 1, now_ms)
    assert await process.coordinator.expire(now_ms) == SweepResult(1, 0, None)


async def test_a_commit_that_was_faster_than_the_sweep_stands() -> None:
    """The sweep's compare-and-set fails without an error."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin(1_000)
    stop = process.wire.stop(step("put", "/txn/"))
    sweeping = asyncio.ensure_future(process.coordinator.expire(world.environment.now_ms() + 9_999))
    await stop.reached.wait()
    await other.commit(txn)
    stop.go.set()
    await sweeping
    assert (await process.coordinator.describe(txn.txn_id)).state is State.COMMITTED


async def test_settling_reaches_every_participant_once() -> None:
    """Any process may settle, repeatedly; an open transaction cannot be settled."""
    world = World()
    writer, settler = await world.process(), await world.process()
    txn = await writer.begin()
    await writer.send("a", branch_of(txn))
    await writer.send("b", branch_of(txn, 7), OTHER_SEGMENT)
    await writer.acknowledge(txn, Ack(await writer.send("c")))
    with pytest.raises(InvalidTransactionState):
        await settler.coordinator.settle(txn.txn_id)
    await writer.commit(txn)
    assert await settler.coordinator.settle(txn.txn_id) == SweepResult(3, 0)
    assert settler.settled == [
        Participant(OTHER_SEGMENT),
        Participant(SEGMENT),
        Participant(SEGMENT, SUBSCRIPTION),
    ]
    assert world.operations() == 0
    assert await settler.coordinator.settle(txn.txn_id) == SweepResult(0, 0)
    assert await settler.coordinator.settle(TxnID(0, 999)) == SweepResult(0, 0)


async def test_participants_are_settled_beside_each_other() -> None:
    """A slow participant does not delay the others; a limited number is settled at once."""

    async def settled_behind(slow: str, together_max: int) -> list[str]:
        world = World()
        world.coordinator_options = CoordinatorOptions(participants_together_max=together_max)
        process = await world.process()
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.send("b", branch_of(txn), OTHER_SEGMENT)
        await process.abort(txn)
        stop = process.wire.stop(lambda name, argument: name == "put" and abort_record_of(argument.key.path)[0] == slow)
        settling = asyncio.ensure_future(process.coordinator.settle(txn.txn_id))
        await stop.reached.wait()
        await run_ready(200)
        left = world.space.records.scan(all_operations_range(), 10)
        stop.go.set()
        await settling
        assert world.operations() == 0
        return [decode(WriteOperation, record).segment for record in left.records]

    assert await settled_behind(OTHER_SEGMENT, 2) == [OTHER_SEGMENT]
    assert await settled_behind(OTHER_SEGMENT, 1) == [SEGMENT, OTHER_SEGMENT]


async def test_whoever_ended_a_transaction_settles_it_without_reading_it() -> None:
    """The outcome never changes; removed operations are not searched again if none could be added."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await process.commit(txn)
    process.wire.steps.clear()
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(1, 0)
    assert [name for name, _ in process.wire.steps] == ["scan", "delete"]
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(0, 0)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_participant_that_is_away_does_not_hold_up_the_others(
    commits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Its operations stay, are counted, and are found again; operators get a message about them.

    A commit needs no step of a segment, only its operation is removed.
    """
    world = World()
    process = await world.process()
    txn = await process.begin()
    position = await process.send("a", branch_of(txn))
    await process.send("b", branch_of(txn), OTHER_SEGMENT)
    await process.acknowledge(txn, Ack(position))
    await (process.commit(txn) if commits else process.abort(txn))
    process.unavailable.add(SEGMENT)
    away = [f"subscription {SUBSCRIPTION} of {SEGMENT}", *([] if commits else [SEGMENT])]
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(3 - len(away), len(away))
    for one in away:
        assert f"transaction {txn.txn_id} could not be settled at {one}: " in caplog.text
    process.unavailable.clear()
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(len(away), 0)


async def test_an_outcome_is_kept_for_the_retention_and_then_forgotten() -> None:
    """The clock skew is added; the sweep says when the next outcome is due."""
    world = World(transactions=RETENTION)
    process = await world.process()
    txn = await process.begin()
    await process.commit(txn)
    now_ms = world.environment.now_ms()
    assert await process.coordinator.collect(now_ms + 10_499) == SweepResult(0, 0, now_ms + 10_500)
    assert (await process.coordinator.describe(txn.txn_id)).state is State.COMMITTED
    assert await process.coordinator.collect(now_ms + 10_500) == SweepResult(1, 0, None)
    assert world.paths("/txn/") == []


async def test_collecting_never_deletes_on_behalf_of_a_slow_participant() -> None:
    """The header stays as long as an operation exists, however old it is; then it is deleted."""
    world = World(transactions=RETENTION)
    ending, process = await world.process(), await world.process()
    txn = await ending.begin()
    await ending.send("a", branch_of(txn))
    await ending.acknowledge(txn, Ack(await ending.send("b")))
    await ending.commit(txn)
    await world.environment.advance(1_000_000)
    process.unavailable.add(SEGMENT)
    assert await collect_all(process) == 0
    assert world.operations() == 2
    assert len(world.paths("/txn/")) == 1
    process.unavailable.clear()
    assert await collect_all(process) > 0
    assert world.paths("/txn/") == []
    assert [ack.position for ack in world.cursor().applied] == [Ack(await _last(process)).position]
    assert await process.values() == ["a", "b"]


async def _last(process: Process) -> Position:
    return (await (await process.ledger()).tail()).last_confirmed


async def test_what_a_dead_process_left_is_finished_long_before_the_retention_has_passed() -> None:
    """A sweep waits only briefly for the process that ended the transaction."""
    world = World(transactions=RETENTION)
    dead, process = await world.process(), await world.process()
    for at in range(4):
        txn = await dead.begin()
        await dead.send(f"{at}", branch_of(txn))
        await (dead.commit(txn) if at % 2 else dead.abort(txn))
    assert await collect_all(process) == 0
    await world.environment.advance(5_000)
    assert await collect_all(process) == 4
    assert world.operations() == 0
    assert len(world.paths("/txn/")) == 4
    assert await process.values() == ["1", "3"]


async def test_an_operation_whose_header_is_gone_is_deleted_without_effect() -> None:
    """It belongs to no transaction, so it must not hold its message."""
    world = World()
    process = await world.process()
    orphan = AckOperation(
        branch=0,
        segment=SEGMENT,
        subscription=SUBSCRIPTION,
        incarnation=1,
        acks=[AckDocument(position="1:0")],
    )
    txn_id = TxnID(0, 77)
    indexes = operation_indexes(txn_id, orphan)
    await process.wire.apply(Step(puts=(PutSequential(operations_prefix(txn_id), encode(orphan), indexes),)))
    assert await collect_all(process) == 1
    assert world.operations() == 0
    assert world.cursor().applied == []


async def test_open_transactions_are_left_alone() -> None:
    """Collecting looks at their operations and touches nothing."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for at in range(5):
        await process.send(f"{at}", branch_of(txn, at))
    assert await collect_all(process) == 0
    assert world.operations() == 5


@pytest.mark.parametrize("sweep_transactions_max", [1, 2, 3])
async def test_what_cannot_be_collected_does_not_starve_the_others(sweep_transactions_max: int) -> None:
    """Sweeps pass any number of such headers, of any age and state, and finish."""
    section = TransactionsSection(
        retention_ms=1_000, max_clock_skew_ms=0, sweep_transactions_max=sweep_transactions_max
    )
    world = World(transactions=section)
    ending, process = await world.process(), await world.process()
    for segment in (OTHER_SEGMENT, SEGMENT):
        for at in range(6):
            txn = await ending.begin()
            await ending.send(f"{at}", branch_of(txn), segment)
            await (ending.commit(txn) if at % 2 else ending.abort(txn))
        await world.environment.advance(10)
    process.unavailable.add(OTHER_SEGMENT)
    await world.environment.advance(100_000)
    now_ms = world.environment.now_ms()
    swept = await process.coordinator.collect(now_ms)
    for _ in range(30):
        if swept.next_ms is None and not swept.done:
            break
        swept = await process.coordinator.collect(now_ms)
    else:
        pytest.fail("there is always something due")
    assert len(world.paths("/txn/")) == 6
    assert len(world.paths("/txn-op/")) == 6


async def damage(process: Process, txn_id: TxnID) -> None:
    """Overwrite a header with one that no release knows; its index entry stays."""
    record = await process.wire.inner.get(header_key(txn_id))
    indexes = header_indexes(txn_id, decode(TransactionHeader, record))
    await process.wire.inner.put(Put(record.key, b'{"format":2}', record.version, indexes))


@pytest.mark.parametrize("sweep_transactions_max", [1, 100])
async def test_a_damaged_header_stops_no_time_out(sweep_transactions_max: int) -> None:
    """Every sweep reports the header as remaining; later ones are aborted, and the next deadline is known."""
    section = TransactionsSection(max_clock_skew_ms=0, sweep_transactions_max=sweep_transactions_max)
    process = await World(transactions=section).process()
    damaged = await process.begin(1_000)
    overdue, damaged_later, later = [await process.begin(ms) for ms in (2_000, 8_000, 9_000)]
    for txn in (damaged, damaged_later):
        await damage(process, txn.txn_id)
    now_ms = process.world.environment.now_ms() + 3_000
    swept = await process.coordinator.expire(now_ms)
    assert swept.left
    if sweep_transactions_max == 1:
        assert swept.next_ms == now_ms
        swept = await process.coordinator.expire(now_ms)
    assert swept.next_ms == later.deadline_ms
    assert (await process.coordinator.describe(overdue.txn_id)).state is State.ABORTED
    assert (await process.coordinator.describe(later.txn_id)).state is State.OPEN


async def test_a_damaged_header_hides_no_open_transaction() -> None:
    """Sweeps and operators still see all other transactions."""
    process = await World().process()
    damaged, sound = await process.begin(1_000), await process.begin(2_000)
    await damage(process, damaged.txn_id)
    assert await process.coordinator.list_open(OpenQuery()) == (sound,)


async def test_damaged_records_stop_no_collecting() -> None:
    """A header or an operation that cannot be read stays, with what belongs to it; all others are collected."""
    world = World(transactions=TransactionsSection(retention_ms=1_000, max_clock_skew_ms=0))
    process = await world.process()
    txns = [await process.begin() for _ in range(4)]
    for txn in txns:
        await process.send("a", branch_of(txn))
        await process.abort(txn)
    await damage(process, txns[0].txn_id)
    (path,) = world.paths(f"/txn-op/{txns[1].txn_id}")
    record = await process.wire.inner.get(Key(path, str(txns[1].txn_id)))
    await process.wire.inner.put(Put(record.key, b"{}", record.version))
    await world.environment.advance(100_000)
    for _ in range(10):
        await process.coordinator.collect(world.environment.now_ms())
    kept = [str(txn.txn_id) for txn in txns[:2]]
    assert [path.rpartition("/")[2] for path in world.paths("/txn/")] == kept
    assert world.operations() == 2
