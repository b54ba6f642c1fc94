"""Application records: one transaction for each batch, through restarts of the application."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import Process, World, branch_of, step, waiting

from txnframework.config import TransactionsSection
from txnframework.errors import Fenced, OutcomeUnknown, TransactionConflict
from txnframework.model import BatchID, CommittedBatch, Position, SourceRange, State, TxnID
from txnframework.model.records import ApplicationRecord, CommittedBatchDocument
from txnframework_metadata.coordinator import application_record as pure
from txnframework_metadata.options import CoordinatorOptions

APP = "billing-pipeline"
RECORD = step("put", "/txn-app/")
RANGES = (SourceRange("topic://a/b/c", "s", {"seg": Position(1, 0)}, {"seg": Position(1, 9)}),)


def batch(version: int, run: str = "run-1", query: str = "query-1") -> BatchID:
    return BatchID(APP, query, run, version)


async def commit_batch(process: Process, which: BatchID, *, settle: bool = True) -> TxnID:
    """Do what a sink does with one batch."""
    await process.coordinator.claim(which.application, which.run)
    txn = await process.coordinator.begin_batch(which, 60_000)
    await process.coordinator.finish_batch(which, txn.txn_id, RANGES)
    await process.commit(txn)
    if settle:
        await process.coordinator.settle(txn.txn_id)
    return txn.txn_id


async def versions(process: Process) -> list[tuple[str, int]]:
    application = await process.coordinator.application(APP)
    assert application is not None
    return [(known.query, known.version) for known in application.committed]


async def state_of(process: Process, txn_id: TxnID) -> State:
    return (await process.coordinator.describe(txn_id)).state


async def test_a_run_is_claimed_once_and_past_runs_are_fenced() -> None:
    """The same run may claim again; an earlier run never can."""
    world = World()
    process = await world.process()
    assert await process.coordinator.application(APP) is None
    first = await process.coordinator.claim(APP, "run-1")
    assert (first.run, first.past_runs, first.txn_id) == ("run-1", (), None)
    assert await process.coordinator.claim(APP, "run-1") == first
    second = await process.coordinator.claim(APP, "run-2")
    assert (second.run, second.past_runs) == ("run-2", ("run-1",))
    with pytest.raises(Fenced) as raised:
        await process.coordinator.claim(APP, "run-1")
    assert raised.value.holder == "run run-2"
    with pytest.raises(Fenced):
        await process.coordinator.begin_batch(batch(0), 1_000)


async def test_past_runs_are_bounded() -> None:
    """The record does not grow with the number of restarts."""
    world = World()
    world.coordinator_options = CoordinatorOptions(past_runs_max=3)
    process = await world.process()
    for at in range(6):
        await process.coordinator.claim(APP, f"run-{at}")
    application = await process.coordinator.application(APP)
    assert application is not None
    assert application.past_runs == ("run-2", "run-3", "run-4")


async def test_many_executors_that_begin_one_batch_get_one_transaction() -> None:
    """Exactly one transaction is used; those begun by other executors are aborted."""
    world = World()
    processes = [await world.process() for _ in range(8)]
    begun = await asyncio.gather(*(process.coordinator.begin_batch(batch(0), 60_000) for process in processes))
    assert len({txn.txn_id for txn in begun}) == 1
    states = [await state_of(processes[0], TxnID.parse(path[5:])) for path in world.paths("/txn/")]
    assert states.count(State.OPEN) == 1
    assert set(states) <= {State.OPEN, State.ABORTED}
    assert world.operations() == 1
    application = await processes[0].coordinator.application(APP)
    assert application is not None
    assert (application.txn_id, application.version) == (begun[0].txn_id, 0)


async def test_the_transaction_of_a_batch_is_found_again_while_it_is_open() -> None:
    """After its end, committed or not, another transaction begins, because writers always stage."""
    process = await World().process()
    first = await process.coordinator.begin_batch(batch(0), 60_000)
    assert (await process.coordinator.begin_batch(batch(0), 60_000)).txn_id == first.txn_id
    await process.abort(first)
    second = await process.coordinator.begin_batch(batch(0), 60_000)
    assert second.txn_id != first.txn_id
    await process.commit(second)
    third = await process.coordinator.begin_batch(batch(0), 60_000)
    assert third.txn_id != second.txn_id
    assert third.state is State.OPEN


async def test_a_later_batch_ends_the_earlier_one_and_an_earlier_one_never_a_later() -> None:
    """A delayed task of an earlier batch must not end a later batch of its own run."""
    process = await World().process()
    first = await process.coordinator.begin_batch(batch(0), 60_000)
    second = await process.coordinator.begin_batch(batch(1), 60_000)
    assert await state_of(process, first.txn_id) is State.ABORTED
    with pytest.raises(Fenced):
        await process.coordinator.begin_batch(batch(0), 60_000)
    assert await state_of(process, second.txn_id) is State.OPEN


async def test_a_new_run_aborts_the_open_transaction_and_begins_another() -> None:
    """A new run never continues the old transaction, whose tasks may have divided the batch differently."""
    world = World()
    old, new = await world.process(), await world.process()
    before = await old.coordinator.begin_batch(batch(3), 60_000)
    claimed = await new.coordinator.claim(APP, "run-2")
    assert claimed.txn_id is None
    assert await state_of(new, before.txn_id) is State.ABORTED
    after = await new.coordinator.begin_batch(batch(3, "run-2"), 60_000)
    assert after.txn_id != before.txn_id
    # An older checkpoint: batch numbers go back with another run.
    assert (await new.coordinator.begin_batch(batch(1, "run-3"), 60_000)).state is State.OPEN


async def test_an_old_run_that_is_paused_before_its_record_is_fenced_and_leaves_nothing_open() -> None:
    """The old run's compare-and-set conflicts with the new run's record."""
    world = World()
    old, new = await world.process(), await world.process()
    await old.coordinator.claim(APP, "run-1")
    stop = old.wire.stop(RECORD)
    beginning = await waiting(old.coordinator.begin_batch(batch(0), 60_000))
    assert stop.reached.is_set()
    after = await new.coordinator.begin_batch(batch(0, "run-2"), 60_000)
    stop.go.set()
    with pytest.raises(Fenced):
        await beginning
    listed = [TxnID.parse(path[5:]) for path in world.paths("/txn/")]
    still_open = [txn_id for txn_id in listed if await state_of(new, txn_id) is State.OPEN]
    assert still_open == [after.txn_id]


async def test_an_old_run_that_is_paused_after_its_record_finds_its_transaction_aborted() -> None:
    """The check after the record finds that a newer run has ended the transaction."""
    world = World()
    old, new = await world.process(), await world.process()
    await old.coordinator.claim(APP, "run-1")
    named = False

    def after_naming(name: str, argument: object) -> bool:
        nonlocal named
        if RECORD(name, argument):
            named = True
        return named and step("get", "/txn/")(name, argument)

    stop = old.wire.stop(after_naming)
    beginning = await waiting(old.coordinator.begin_batch(batch(0), 60_000))
    assert stop.reached.is_set()
    await new.coordinator.claim(APP, "run-2")
    stop.go.set()
    with pytest.raises(Fenced):
        await beginning


@pytest.mark.parametrize(
    "lost", ["apply /txn-op/", "put /txn-app/", "put /txn/"], ids=["operation", "record", "header"]
)
async def test_a_lost_reply_anywhere_leaves_one_open_transaction(lost: str) -> None:
    """Applied writes are found by reading: the batch has one transaction, which the record names."""
    world = World()
    process = await world.process()
    await process.coordinator.claim(APP, "run-1")
    names, _, prefix = lost.rpartition(" ")
    process.wire.lose_reply(step(names, prefix))
    begun = await process.coordinator.begin_batch(batch(0), 60_000)
    again = await process.coordinator.begin_batch(batch(0), 60_000)
    assert begun.txn_id == again.txn_id
    assert len(world.paths("/txn/")) == 1


async def test_committed_batches_are_known_with_their_ranges_settled_or_not() -> None:
    """An ended transaction is included before its settlement and after its collection."""
    world = World(transactions=TransactionsSection(retention_ms=0, max_clock_skew_ms=0))
    process, other = await world.process(), await world.process()
    txn_id = await commit_batch(process, batch(0), settle=False)
    expected = (CommittedBatch("query-1", 0, RANGES),)
    for _ in range(2):
        application = await other.coordinator.application(APP)
        assert application is not None
        assert application.committed == expected
        assert application.txn_id == txn_id
        await other.coordinator.settle(txn_id)
    await other.coordinator.collect(world.environment.now_ms() + 1)
    assert world.paths("/txn/") == []
    application = await other.coordinator.application(APP)
    assert application is not None
    assert application.committed == expected


async def test_the_record_is_written_before_the_operation_goes() -> None:
    """Otherwise, a crash in between would lose that the batch was committed."""
    world = World()
    process = await world.process()
    txn_id = await commit_batch(process, batch(0), settle=False)
    process.wire.refuse(RECORD)
    assert (await process.coordinator.settle(txn_id)).left == 2
    assert await versions(process) == [("query-1", 0)]
    assert (await process.coordinator.settle(txn_id)).left == 0
    assert await versions(process) == [("query-1", 0)]


async def test_beginning_the_next_batch_carries_the_outcome_of_the_one_before() -> None:
    """No process has settled that batch; without the stored outcome, an older checkpoint would commit it again."""
    world = World()
    process = await world.process()
    first = await commit_batch(process, batch(0), settle=False)
    await commit_batch(process, batch(1), settle=False)
    await process.coordinator.claim(APP, "run-2")
    assert await versions(process) == [("query-1", 0), ("query-1", 1)]
    await process.coordinator.settle(first)
    assert await versions(process) == [("query-1", 0), ("query-1", 1)]


async def test_an_aborted_batch_leaves_no_trace_in_the_record() -> None:
    """The operations of an aborted batch are removed without effect."""
    world = World()
    process = await world.process()
    txn = await process.coordinator.begin_batch(batch(0), 60_000)
    await process.coordinator.finish_batch(batch(0), txn.txn_id, RANGES)
    await process.abort(txn)
    await process.coordinator.settle(txn.txn_id)
    assert await versions(process) == []
    assert world.operations() == 0


async def test_finishing_a_batch_may_be_repeated_and_needs_an_open_transaction() -> None:
    """The last ranges count; an ended transaction accepts none."""
    world = World()
    process = await world.process()
    txn = await process.coordinator.begin_batch(batch(0), 60_000)
    await process.coordinator.finish_batch(batch(0), txn.txn_id, ())
    for _ in range(2):
        await process.coordinator.finish_batch(batch(0), txn.txn_id, RANGES)
    assert world.operations() == 2
    await process.commit(txn)
    with pytest.raises(TransactionConflict):
        await process.coordinator.finish_batch(batch(0), txn.txn_id, ())
    application = await process.coordinator.application(APP)
    assert application is not None
    assert application.committed == (CommittedBatch("query-1", 0, RANGES),)


async def test_committed_batches_are_bounded_and_do_not_come_back() -> None:
    """A late settlement does not add a batch again that was dropped for newer ones."""
    world = World()
    world.coordinator_options = CoordinatorOptions(committed_batches_max=2)
    process = await world.process()
    first = await commit_batch(process, batch(0), settle=False)
    for version in range(1, 4):
        await commit_batch(process, batch(version))
    await process.coordinator.settle(first)
    assert await versions(process) == [("query-1", 2), ("query-1", 3)]


def test_batches_of_many_segments_are_remembered_while_they_have_few_ranges() -> None:
    """The record stays small, but always has the last two batches, however large they are."""
    ends = {str(segment): Position(1, 9) for segment in range(pure.RANGES_MAX // 4)}
    record = ApplicationRecord(run="r")
    for segments in (ends, ends | {"more": Position(1, 9)}, dict.fromkeys(map(str, range(999)), Position(1, 9))):
        for _ in range(5):
            version = len(record.committed) + (record.committed[0].version if record.committed else 0)
            operation = pure.operation_of_batch(batch(version), (SourceRange("t", "s", segments, segments),))
            new = CommittedBatchDocument(query="query-1", version=version, ranges=operation.ranges or [])
            record = pure.with_outcome(record, TxnID(0, version), new, pure.Bounds(5, 100))
        kept = 4 if segments is ends else 3 if len(segments) < 99 else 2
        assert [known.version for known in record.committed] == list(range(version - kept + 1, version + 1))


def test_an_outcome_of_another_query_is_added() -> None:
    """Batch numbers of different queries are unrelated."""
    record = ApplicationRecord(run="r", txn="x", committed=[CommittedBatchDocument(query="one", version=9)])
    new = CommittedBatchDocument(query="two", version=0)
    included = pure.with_outcome(record, TxnID(0, 1), new, pure.Bounds(5, 5))
    assert included.committed == [*record.committed, new]


async def test_a_lost_reply_that_cannot_be_read_back_is_an_unknown_outcome() -> None:
    """A plain failure would mean that the record did not change; repeating the call finds the written record."""
    process = await World().process()
    await process.coordinator.claim(APP, "run-1")
    process.wire.lose_reply(step("put", "/txn-app/"))
    stop = process.wire.stop(step("put", "/txn-app/"))
    claiming = await waiting(process.coordinator.claim(APP, "run-2"))
    process.wire.refuse(step("get", "/txn-app/"))
    stop.go.set()
    with pytest.raises(OutcomeUnknown):
        await claiming
    assert (await process.coordinator.claim(APP, "run-2")).run == "run-2"


async def test_a_run_that_first_calls_late_fences_the_newer_one_and_harms_nothing() -> None:
    """An older run that calls late cannot be recognised as older: it fences the newer run, which is notified
    and restarts.
    """
    process = await World().process()
    newer = await process.coordinator.begin_batch(batch(1, "run-2"), 60_000)
    await process.coordinator.begin_batch(batch(0, "run-1"), 60_000)
    assert (await process.coordinator.describe(newer.txn_id)).state is State.ABORTED
    with pytest.raises(Fenced):
        await process.coordinator.begin_batch(batch(1, "run-2"), 60_000)
    await process.coordinator.begin_batch(batch(1, "run-3"), 60_000)
    with pytest.raises(Fenced):
        await process.coordinator.begin_batch(batch(0, "run-1"), 60_000)


async def test_a_batch_whose_operations_fill_more_than_a_page_keeps_its_ranges() -> None:
    """A sweep that reads the first page settles the batch by all of its pages."""
    world = World()
    process = await world.process()
    txn = await process.coordinator.begin_batch(batch(1), 60_000)
    for number in (5, 6):
        await process.send(f"{number}", branch_of(txn, number))
    await process.coordinator.finish_batch(batch(1), txn.txn_id, RANGES)
    await process.commit(txn, 0, 5, 6)
    await world.environment.advance(10_000)
    for _ in range(4):
        await process.coordinator.collect(world.environment.now_ms())
    application = await process.coordinator.application(APP)
    assert application is not None
    assert application.committed == (CommittedBatch("query-1", 1, RANGES),)
    assert world.operations() == 0
