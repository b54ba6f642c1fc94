"""The coordinator ``log``: the records of its log, two-phase ends, and completion by other processes."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from legacy_world import HERE, THERE, TIMEOUT_MS, YEAR_MS, Process, World, in_world

from txnframework.errors import (
    CorruptEntry,
    EndTransactionTimeout,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
)
from txnframework.model import Action, Append, Limit, OpenQuery, Position, State, TxnID
from txnframework.model.ids import LOG_FAMILY_BIT
from txnframework.testing.clock import run_ready
from txnframework_legacy.coordinator.log import log_name
from txnframework_legacy.coordinator.records import AddPartition, AddSubscription, Forget, New, Update
from txnframework_legacy.coordinator.state import NEXT, Transactions
from txnframework_legacy.log import RecordPosition
from txnframework_legacy.options import CoordinatorOptions

BOTH = frozenset({HERE, THERE})


def position(number: int, ledger: int = 1) -> RecordPosition:
    return RecordPosition(Position(ledger, number))


def begun(*path: State) -> Transactions:
    """Return transactions of which number 1 went through these states."""
    found = Transactions(LOG_FAMILY_BIT)
    found.apply(New(number=1, created_ms=10, deadline_ms=20), position(0))
    before = State.OPEN
    for number, state in enumerate(path):
        found.apply(Update(number=1, expected=before.value, state=state.value, at_ms=30), position(number + 1))
        before = state
    return found


def state(found: Transactions) -> State:
    logged = found.get(1)
    assert logged is not None
    return logged.state


PATHS = {
    State.OPEN: (),
    State.COMMITTING: (State.COMMITTING,),
    State.COMMITTED: (State.COMMITTING, State.COMMITTED),
    State.ABORTING: (State.ABORTING,),
    State.ABORTED: (State.ABORTING, State.ABORTED),
}


@pytest.mark.parametrize(("before", "after"), [*product(State, State)])
def test_transition_table(before: State, after: State) -> None:
    """OPEN goes to COMMITTING or ABORTING, these to their final states, a final one nowhere; nothing else changes."""
    allowed = {
        (State.OPEN, State.COMMITTING),
        (State.OPEN, State.ABORTING),
        (State.COMMITTING, State.COMMITTED),
        (State.ABORTING, State.ABORTED),
    }
    found = begun(*PATHS[before])
    found.apply(Update(number=1, expected=before.value, state=after.value, at_ms=99), position(9))
    assert (state(found) is after) is ((before, after) in allowed or before is after)
    assert (after in NEXT[before]) is ((before, after) in allowed)


@pytest.mark.parametrize("expected", [one for one in State if one is not State.OPEN])
def test_a_wrong_expected_state_changes_nothing(expected: State) -> None:
    """A record that expects another state than the current one is skipped."""
    found = begun()
    found.apply(Update(number=1, expected=expected.value, state=State.COMMITTING.value, at_ms=99), position(9))
    assert state(found) is State.OPEN


def test_participants_are_added_once_and_only_while_open() -> None:
    """Repeated topics and subscriptions are added once; those after the decision are not added."""
    found = begun()
    for _ in range(2):
        found.apply(AddPartition(number=1, segments=[HERE.segment]), position(5))
        found.apply(AddSubscription(number=1, subscriptions=[(THERE.segment, THERE.subscription)]), position(6))
    found.apply(Update(number=1, expected="OPEN", state="ABORTING", at_ms=30), position(7))
    found.apply(AddPartition(number=1, segments=["late"]), position(8))
    logged = found.get(1)
    assert logged is not None
    assert logged.transaction.participants == BOTH


def test_records_of_what_is_not_known_hinder_nothing() -> None:
    """Records of transactions whose beginning was trimmed, and repeated beginnings, are skipped."""
    found = begun(State.COMMITTING)
    for record in (
        Update(number=7, expected="OPEN", state="ABORTING", at_ms=1),
        AddPartition(number=7, segments=["x"]),
        AddSubscription(number=7, subscriptions=[("x", "y")]),
        Forget(numbers=[7, 8]),
        New(number=1, created_ms=99, deadline_ms=99),
    ):
        found.apply(record, position(9))
    assert [logged.transaction.created_ms for logged in found.all()] == [10]
    assert state(found) is State.COMMITTING


def test_what_is_needed_of_a_log() -> None:
    """A ledger is needed while a transaction that began in it is remembered; trimmed ledgers had none."""
    found = Transactions(LOG_FAMILY_BIT)
    for number in (1, 2, 3):
        found.apply(New(number=number, created_ms=0, deadline_ms=0), position(0, ledger=number))
    found.apply(Forget(numbers=[1]), position(1, ledger=3))
    assert found.live.first_ledger() == 2
    found.trimmed(3)
    assert (found.live.first_ledger(), found.get(2)) == (3, None)


# -- ending -------------------------------------------------------------------------------------------


@in_world
async def test_ending_tells_everybody_and_writes_what_was_decided(world: World) -> None:
    """The decision is logged before any participant is notified, the final state after all of them."""
    process = await world.process()
    txn = await process.begin(participants=BOTH)
    ended = await process.end(txn)
    assert ended.state is State.COMMITTED
    assert sorted(process.participants.told) == [(HERE, State.COMMITTED), (THERE, State.COMMITTED)]
    records = await process.records(txn.coordinator)
    assert [type(record) for record in records] == [New, AddPartition, AddSubscription, Update, Update]
    assert [record.state for record in records if isinstance(record, Update)] == ["COMMITTING", "COMMITTED"]


@in_world
async def test_a_participant_is_tried_again(world: World) -> None:
    """A participant that is unavailable is retried until it answers; notified ones are not notified again."""
    process = await world.process()
    process.participants.away = {THERE}
    txn = await process.begin(participants=BOTH)
    ending = asyncio.ensure_future(process.end(txn))
    await world.environment.advance(1_000)
    assert not ending.done()
    process.participants.away = set()
    await world.environment.advance(1_000)
    assert (await ending).state is State.COMMITTED
    assert sorted(process.participants.told) == [(HERE, State.COMMITTED), (THERE, State.COMMITTED)]


async def never(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("answers", [True, False], ids=["refuses", "does not answer"])
def test_ending_times_out_when_its_time_is_up(answers: bool) -> None:
    """EndTransactionTimeout is raised exactly when the configured time has passed."""

    async def times_out(world: World) -> None:
        process = await world.process()
        process.participants.away = {THERE}
        if not answers:
            process.participants.settle = never  # type: ignore[method-assign]
        txn = await process.begin(participants=BOTH)
        ending = asyncio.ensure_future(process.end(txn))
        await world.environment.advance(world.transactions.end_timeout_ms - 1)
        assert not ending.done()
        await world.environment.advance(1)
        assert isinstance(ending.exception(), EndTransactionTimeout)

    in_world(times_out)()


@in_world
async def test_ending_times_out_and_is_decided(world: World) -> None:
    """If a participant is late, EndTransactionTimeout names the transaction; every process sees it as ended."""
    process, other = await world.process(), await world.process()
    process.participants.away = {THERE}
    txn = await process.begin(participants=BOTH)
    ending = asyncio.ensure_future(process.end(txn))
    await world.environment.advance(world.transactions.end_timeout_ms)
    with pytest.raises(EndTransactionTimeout) as late:
        await ending
    assert (late.value.txn_id, late.value.timeout_ms) == (txn, world.transactions.end_timeout_ms)
    assert (await other.coordinator.describe(txn)).state is State.COMMITTED
    with pytest.raises(InvalidTransactionState):
        await other.end(txn, Action.ABORT)
    (left,) = await other.coordinator.outstanding(None, Limit(9))
    assert (left.txn_id, left.operations) == (txn, 2)
    # The same end again goes on with it.
    assert (await other.end(txn)).state is State.COMMITTED
    assert await other.coordinator.outstanding(None, Limit(9)) == ()


@in_world
async def test_a_deleted_participant_holds_nothing_up(world: World) -> None:
    """The outcome has no effect on a deleted participant."""
    process = await world.process()
    process.participants.gone = {HERE}
    txn = await process.begin(participants=BOTH)
    assert (await process.end(txn)).state is State.COMMITTED


@in_world
async def test_closing_while_participants_are_tried(world: World) -> None:
    """A closing coordinator does not wait for participants: callers get an unknown outcome."""
    process = await world.process()
    process.participants.away = {THERE}
    txn = await process.begin(participants=BOTH)
    ending = asyncio.ensure_future(process.end(txn))
    await run_ready()
    await process.coordinator.close()
    with pytest.raises(OutcomeUnknown):
        await ending


@in_world
async def test_who_was_paused_over_the_end_does_not_claim_to_know_it(world: World) -> None:
    """A process pauses after its own decision until others have settled and removed the transaction: the outcome is
    unknown.

    That the transaction is not found would say that it was not committed, and it was.
    """
    process, survivor = await world.process(), await world.process()
    txn = await process.begin(participants=BOTH)
    held = process.connection.hold(3)  # the decision stands there, and is about to be read
    ending = asyncio.ensure_future(process.end(txn))
    await run_ready()
    assert held.reached.is_set()
    assert (await survivor.coordinator.describe(txn)).state is State.COMMITTED
    await survivor.coordinator.expire(world.environment.now_ms())
    await survivor.coordinator.collect(world.later_ms())
    process.connection.restore()
    with pytest.raises(OutcomeUnknown, match="may have ended"):
        await ending


@in_world
async def test_what_was_left_half_ended_is_finished_by_another_process(world: World) -> None:
    """After a kill at any step, a sweep of another process notifies every participant."""
    for action, outcome in ((Action.COMMIT, State.COMMITTED), (Action.ABORT, State.ABORTED)):
        for step in range(1, 6):
            process, survivor = await world.process(), await world.process()
            txn = await process.begin(participants=BOTH)
            held = process.connection.hold(step)
            ending = asyncio.ensure_future(process.end(txn, action))
            await run_ready()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            decided = (await survivor.coordinator.describe(txn)).state
            assert held.reached.is_set() or decided is outcome
            await survivor.coordinator.expire(world.environment.now_ms())
            assert (await survivor.coordinator.describe(txn)).state is decided
            if decided is not State.OPEN:
                everybody = {*process.participants.told, *survivor.participants.told}
                assert everybody == {(HERE, outcome), (THERE, outcome)}
            assert await survivor.coordinator.outstanding(None, Limit(9)) == ()
            await survivor.coordinator.expire(world.later_ms())


@in_world
async def test_coordinators_that_are_not_configured_any_more(world: World) -> None:
    """Transactions of removed coordinators are listed, aborted when overdue, and finished."""
    world.transactions = type(world.transactions)(coordinators=8)
    before = [await world.process() for _ in range(16)]
    left_open = [await process.begin(participants=BOTH) for process in before]
    assert len({txn.coordinator for txn in left_open}) > 1
    half_ended = left_open.pop()
    before[-1].participants.away = set(BOTH)
    ending = asyncio.ensure_future(before[-1].end(half_ended))
    await run_ready()
    ending.cancel()
    world.transactions = type(world.transactions)(coordinators=1)
    process = await world.process()
    assert {one.txn_id for one in await process.coordinator.list_open(OpenQuery())} == {*left_open}
    await process.coordinator.expire(world.later_ms())
    assert [(await process.coordinator.describe(txn)).state for txn in left_open] == [State.ABORTED] * 15
    assert (HERE, State.COMMITTED) in process.participants.told
    assert await process.coordinator.outstanding(None, Limit(9)) == ()


@in_world
async def test_stuck_ones_do_not_keep_others_from_their_turn(world: World) -> None:
    """Sweeps reach the other transactions, however many cannot be finished."""
    world.transactions = type(world.transactions)(coordinators=1, sweep_transactions_max=3, end_timeout_ms=1)
    process = await world.process()
    stuck = [await process.begin(participants=frozenset({THERE})) for _ in range(7)]
    fine = await process.begin(participants=frozenset({HERE}))
    process.participants.away = {HERE, THERE}
    ending = [asyncio.ensure_future(process.end(txn)) for txn in (*stuck, fine)]
    await world.environment.advance(1)
    for end in ending:
        with pytest.raises(EndTransactionTimeout):
            await end
    process.participants.away = {THERE}
    for _ in range(10):
        await process.coordinator.expire(world.environment.now_ms())
    assert {one.txn_id for one in await process.coordinator.outstanding(None, Limit(9))} == set(stuck)


# -- late writers, and what they find -----------------------------------------------------------------


@in_world
async def test_a_record_is_judged_where_it_stands(world: World) -> None:
    """A process that was paused before it wrote its decision, while another one ended the transaction
    otherwise, changes nothing when it resumes, whichever process holds the coordinator: it reads the decision.
    """
    paused, other = await world.process(), await world.process()
    txn = await other.begin(participants=frozenset({HERE}))
    held = paused.connection.hold(3)  # the log was opened and read to its end, so it saw the transaction open
    ending = asyncio.ensure_future(paused.end(txn))
    await held.reached.wait()
    await other.end(txn, Action.ABORT)
    paused.connection.restore()
    with pytest.raises(InvalidTransactionState) as refused:
        await ending
    assert refused.value.actual is State.ABORTED
    fresh = await world.process()
    assert (await fresh.coordinator.describe(txn)).state is State.ABORTED
    assert other.participants.told == [(HERE, State.ABORTED)]
    assert paused.participants.told == []


@in_world
async def test_enlisting_in_what_has_ended(world: World) -> None:
    """Enlisting after the decision is refused, even for existing participants; nothing is added."""
    process, other = await world.process(), await world.process()
    txn = await process.begin(participants=frozenset({HERE}))
    await process.end(txn)
    for participants in (frozenset({HERE}), frozenset({THERE})):
        with pytest.raises(TransactionConflict):
            await other.coordinator.enlist(txn, participants)
    with pytest.raises(TransactionNotFound):
        await other.coordinator.enlist(TxnID(txn.coordinator, txn.number + 9), frozenset({HERE}))


# -- the log itself -----------------------------------------------------------------------------------


async def log_ledgers(process: Process, txn: TxnID) -> list[int]:
    """Return how many entries each ledger of a log holds."""
    ledger = await process.ledgers.open(log_name(txn.coordinator))
    return [one.entries for one in await ledger.ledgers(-1, 100)]


@in_world
async def test_the_log_shrinks_to_nothing(world: World) -> None:
    """Nothing remains of ended and forgotten transactions; an open one keeps its ledger."""
    process = await world.process(CoordinatorOptions(ledger_entries_max=5))
    still = await process.begin()
    for _ in range(5):
        await process.end(await process.begin())
        await process.coordinator.collect(world.later_ms())
    assert sum(await log_ledgers(process, still)) > 10
    await process.end(still)
    for _ in range(2):
        await process.coordinator.collect(world.later_ms())
    assert await log_ledgers(process, still) == [0]
    fresh = await world.process()
    with pytest.raises(TransactionNotFound):
        await fresh.coordinator.describe(still)
    assert (await fresh.begin()).number > still.number


@in_world
async def test_the_low_watermark(world: World) -> None:
    """Below it every transaction of a coordinator has ended and is forgotten, in every process, and its ledgers
    are gone. The mark is the oldest open transaction. When that ends, the mark passes all ended ones, and it
    never moves back.
    """
    process = await world.process(CoordinatorOptions(ledger_entries_max=1))
    begun, marks = [], []
    for _ in range(4):
        begun.append(await process.begin())
        await process.coordinator.collect(world.later_ms())  # the next one begins in another ledger
    for number in (2, 1, 0, 3):
        await process.end(begun[number])
        for _ in range(2):
            await process.coordinator.collect(world.later_ms())
        ledger = await process.ledgers.open(log_name(begun[0].coordinator))
        marks.append((await ledger.ledgers(-1, 1))[0].ledger_id)
        fresh = await world.process()
        if number == 1:
            assert (await fresh.coordinator.describe(begun[0])).state is State.OPEN
        if number == 0:
            assert (await fresh.coordinator.describe(begun[3])).state is State.OPEN
            for one in begun[:3]:
                with pytest.raises(TransactionNotFound):
                    await fresh.coordinator.describe(one)
    assert marks[0] == marks[1] < marks[2] < marks[3]


@in_world
async def test_nothing_is_trimmed_that_began_meanwhile(world: World) -> None:
    """A transaction that begins at any step of trimming is known afterwards, in every process."""
    step, reached = 0, True
    while reached:
        step += 1
        process, other = await world.process(), await world.process()
        await process.end(await process.begin())
        held = process.connection.hold(step)
        sweep = asyncio.ensure_future(process.coordinator.collect(world.later_ms()))
        await run_ready()
        reached = held.reached.is_set()
        txn = await other.begin()
        process.connection.restore()
        await sweep
        for one in (process, other, await world.process()):
            assert (await one.coordinator.describe(txn)).state is State.OPEN
        await other.end(txn)


@in_world
async def test_who_was_away_while_the_log_was_trimmed(world: World) -> None:
    """A process that missed the trimmed records has the same state as others, and continues to read."""
    away, process = await world.process(), await world.process()
    gone = await process.begin()
    assert (await away.coordinator.describe(gone)).state is State.OPEN
    await process.end(gone)
    for _ in range(2):
        await process.coordinator.collect(world.later_ms())
    assert await log_ledgers(process, gone) == [0]
    txn = await process.begin()
    with pytest.raises(TransactionNotFound):
        await away.coordinator.describe(gone)
    assert (await away.coordinator.describe(txn)).state is State.OPEN


@in_world
async def test_replay(world: World) -> None:
    """A process that replays a log knows what its writer knew, written in batches or one by one."""
    process = await world.process()
    ids = [await process.begin(TIMEOUT_MS + number, BOTH) for number in range(4)]
    await process.end(ids[1])
    await process.end(ids[2], Action.ABORT)
    process.participants.away = {THERE}
    ending = asyncio.ensure_future(process.end(ids[3]))
    await run_ready()
    fresh = await world.process()
    for txn in ids:
        assert await fresh.coordinator.describe(txn) == await process.coordinator.describe(txn)
    assert [one.txn_id for one in await fresh.coordinator.outstanding(None, Limit(9))] == [ids[3]]
    ending.cancel()


@in_world
async def test_what_cannot_be_read_is_not_passed_over(world: World) -> None:
    """After an unreadable record, every call raises an error that names it: the record may have been a commit."""
    process = await world.process()
    txn = await process.begin()
    ledger = await process.ledgers.open(log_name(txn.coordinator))
    await ledger.append((Append(b"\x0e\x02\x00\x01{}"),), None)
    for _ in range(2):
        with pytest.raises(CorruptEntry, match=r"transaction-log:8000"):
            await process.coordinator.describe(txn)


@in_world
async def test_outcomes_are_kept_and_then_forgotten(world: World) -> None:
    """An outcome is known for ``retention_ms``; COMMITTING is never forgotten, however long it lasts."""
    process = await world.process()
    done, stuck = await process.begin(), await process.begin(participants=frozenset({HERE}))
    await process.end(done)
    process.participants.away = {HERE}
    ending = asyncio.ensure_future(process.end(stuck))
    await world.environment.advance(world.transactions.end_timeout_ms)
    with pytest.raises(EndTransactionTimeout):
        await ending
    await process.coordinator.collect(world.environment.now_ms() + world.transactions.retention_ms - 10_000)
    assert (await process.coordinator.describe(done)).state is State.COMMITTED
    await process.coordinator.collect(world.environment.now_ms() + YEAR_MS)
    with pytest.raises(TransactionNotFound):
        await process.coordinator.describe(done)
    assert (await process.coordinator.describe(stuck)).state is State.COMMITTED
