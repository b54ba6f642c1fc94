"""Beginning, ending, describing, listing and waiting for transactions."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import (
    OTHER_SEGMENT,
    SEGMENT,
    SUBSCRIPTION,
    Process,
    World,
    branch_of,
    step,
    waiting,
)

from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model import (
    Ack,
    Action,
    Begin,
    End,
    Limit,
    OpenQuery,
    Participant,
    State,
    TxnID,
)
from txnframework.plugin import verify_provider
from txnframework_metadata.options import CoordinatorOptions

HEADER_PUT = step("put", "/txn/")
HEADER_GET = step("get", "/txn/")


def end(process: Process, txn_id: TxnID, action: Action, **more: object) -> object:
    return process.coordinator.end(End(txn_id, action, **more))  # type: ignore[arg-type]


async def test_it_keeps_the_contract_of_its_role() -> None:
    """verify_provider checks more than zope does."""
    verify_provider(IApplicationCoordinator, (await World().process()).coordinator)


async def test_a_transaction_begins_open_and_every_process_sees_it() -> None:
    """Deadline, principal and session are stored; an unknown id is not found."""
    world = World()
    one, two = await world.process(), await world.process()
    begun = await one.coordinator.begin(Begin(5_000, "ada", "session-1"))
    assert begun.deadline_ms == begun.created_ms + 5_000 == world.environment.now_ms() + 5_000
    assert await two.coordinator.describe(begun.txn_id) == begun
    assert begun.state is State.OPEN
    with pytest.raises(TransactionNotFound):
        await two.coordinator.describe(TxnID(0, 999))


async def test_a_timeout_must_be_positive_and_allowed() -> None:
    """A timeout above the configured maximum is refused, because it would block topics for too long."""
    process = await World().process()
    for timeout_ms in (0, -1, 86_400_001):
        with pytest.raises(InvalidInput):
            await process.begin(timeout_ms)


@pytest.mark.parametrize("applied", [True, False])
async def test_beginning_survives_a_lost_reply(applied: bool) -> None:
    """No other process knows the id, so a record under it is this transaction."""
    world = World()
    process = await world.process()
    process.wire.lose_reply(HEADER_PUT)
    if applied:
        process.wire.lose_reply(step("put", "/nothing"))
    begun = await process.begin()
    assert (await process.coordinator.describe(begun.txn_id)).state is State.OPEN
    assert len(world.paths("/txn/")) == 1


async def test_whoever_began_a_transaction_ends_it_without_reading_it() -> None:
    """The end is one compare-and-set; if it is refused or its reply is lost, the header is read."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    process.wire.steps.clear()
    assert (await process.commit(txn)).state is State.COMMITTED
    assert [name for name, _ in process.wire.steps] == ["put"]
    txn = await process.begin()
    process.wire.lose_reply(HEADER_PUT)
    process.wire.steps.clear()
    assert (await process.commit(txn)).state is State.COMMITTED
    assert [name for name, _ in process.wire.steps] == ["put", "get"]
    txn = await process.begin()
    await other.abort(txn)
    with pytest.raises(InvalidTransactionState) as refused:
        await process.commit(txn)
    assert refused.value.actual is State.ABORTED


async def test_what_was_begun_is_remembered_up_to_a_bound() -> None:
    """Beyond the limit, the oldest transaction is forgotten; ending it needs a read."""
    world = World()
    world.coordinator_options = CoordinatorOptions(begun_max=2)
    process = await world.process()
    begun = [await process.begin() for _ in range(3)]
    process.wire.steps.clear()
    for txn in begun:
        await process.commit(txn)
    assert [name for name, _ in process.wire.steps] == ["get", "put", "put", "put"]


async def test_ending_again_with_the_same_action_and_branches_succeeds() -> None:
    """Ending with another action raises an error with the actual outcome."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await process.commit(txn, 0, 7)
    again = await other.commit(txn, 7, 0)
    assert again.branches == frozenset({0, 7})
    assert again.finalized_ms == world.environment.now_ms()
    for asked in ((Action.ABORT, {0}), (Action.COMMIT, {0})):
        with pytest.raises(InvalidTransactionState) as raised:
            await end(other, txn.txn_id, asked[0], branches=frozenset(asked[1]))  # type: ignore[misc]
        assert raised.value.actual is State.COMMITTED
    aborted = await process.begin()
    await process.abort(aborted)
    await process.abort(aborted)
    with pytest.raises(InvalidTransactionState) as raised:
        await process.commit(aborted)
    assert raised.value.actual is State.ABORTED
    with pytest.raises(TransactionNotFound):
        await end(process, TxnID(0, 999), Action.ABORT)  # type: ignore[misc]


async def test_two_ends_that_race_have_one_outcome() -> None:
    """The compare-and-set decides; the loser gets the actual outcome."""
    world = World()
    one, two = await world.process(), await world.process()
    txn = await one.begin()
    stop = one.wire.stop(HEADER_PUT)
    committing = await waiting(one.commit(txn))
    assert stop.reached.is_set()
    await two.abort(txn)
    stop.go.set()
    with pytest.raises(InvalidTransactionState) as raised:
        await committing
    assert raised.value.actual is State.ABORTED
    assert (await one.coordinator.describe(txn.txn_id)).state is State.ABORTED


async def test_a_commit_whose_reply_was_lost_is_read_back() -> None:
    """The commit is confirmed to the caller, also when its first attempt was not applied."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.lose_reply(HEADER_PUT)
    assert (await process.commit(txn)).state is State.COMMITTED
    assert (await process.commit(txn)).state is State.COMMITTED


async def test_a_commit_that_cannot_be_read_back_is_unknown() -> None:
    """The outcome is unknown, because the commit may have been applied."""
    process = await World().process()
    txn = await process.begin()
    process.wire.lose_reply(HEADER_PUT)
    stop = process.wire.stop(HEADER_PUT)
    committing = await waiting(process.commit(txn))
    process.wire.refuse(HEADER_GET)
    stop.go.set()
    with pytest.raises(OutcomeUnknown):
        await committing
    assert (await process.coordinator.describe(txn.txn_id)).state is State.COMMITTED


async def test_an_end_that_may_still_be_applied_is_unknown_whatever_fails_after_it() -> None:
    """A second attempt without effect does not decide the first one, which may still be applied."""
    process = await World().process()
    txn = await process.begin()
    process.wire.drop(HEADER_PUT)
    stop = process.wire.stop(HEADER_GET)
    committing = await waiting(process.commit(txn))
    process.wire.refuse(HEADER_PUT)
    stop.go.set()
    with pytest.raises(OutcomeUnknown):
        await committing
    late = next(put for name, put in reversed(process.wire.steps) if HEADER_PUT(name, put))
    await process.wire.inner.put(late)
    assert (await process.coordinator.describe(txn.txn_id)).state is State.COMMITTED


async def test_a_begin_that_may_still_be_applied_is_unknown_whatever_fails_after_it() -> None:
    """The outcome is unknown: no process knows the transaction, and it times out."""
    process = await World().process()
    await process.begin()
    process.wire.lose_reply(HEADER_PUT)
    stop = process.wire.stop(HEADER_PUT)
    beginning = await waiting(process.begin())
    held = process.wire.stop(HEADER_PUT)
    stop.go.set()
    await held.reached.wait()
    process.wire.refuse(HEADER_PUT)
    held.go.set()
    with pytest.raises(OutcomeUnknown):
        await beginning
    assert len(await process.coordinator.list_open(OpenQuery())) == 2


async def test_a_failed_read_before_ending_changes_nothing() -> None:
    """The error is Unavailable, because nothing was sent."""
    world = World()
    txn = await (await world.process()).begin()
    process = await world.process()  # which has to read it, as it did not begin it
    process.wire.refuse(HEADER_GET)
    with pytest.raises(Unavailable):
        await process.commit(txn)
    assert (await process.coordinator.describe(txn.txn_id)).state is State.OPEN


async def test_only_its_principal_may_end_a_transaction() -> None:
    """Any principal may end a transaction without a principal."""
    process = await World().process()
    owned = await process.coordinator.begin(Begin(1_000, "ada"))
    for principal in ("", "eve"):
        with pytest.raises(NotTransactionOwner):
            await end(process, owned.txn_id, Action.COMMIT, principal=principal)  # type: ignore[misc]
    assert (await process.coordinator.describe(owned.txn_id)).state is State.OPEN
    await end(process, owned.txn_id, Action.COMMIT, principal="ada")  # type: ignore[misc]
    free = await process.begin()
    await end(process, free.txn_id, Action.ABORT, principal="eve")  # type: ignore[misc]


async def test_an_operator_may_end_any_transaction() -> None:
    """An operator ends a transaction of any owner, with any principal; a decided outcome does not change."""
    process = await World().process()
    owned = await process.coordinator.begin(Begin(1_000, "ada"))
    ended = await process.coordinator.end(End(owned.txn_id, Action.ABORT, "root", operator=True))
    assert (ended.state, ended.principal) == (State.ABORTED, "ada")
    with pytest.raises(InvalidTransactionState):
        await process.coordinator.end(End(owned.txn_id, Action.COMMIT, operator=True))


async def test_the_operations_say_who_takes_part() -> None:
    """Participants are the written segments and the acknowledged subscriptions; enlisting is not needed."""
    process = await World().process()
    txn = await process.begin()
    await process.coordinator.enlist(txn.txn_id, frozenset({Participant("nowhere")}))
    await process.send("a", branch_of(txn))
    await process.send("b", branch_of(txn, 7), OTHER_SEGMENT)
    position = await process.send("c")
    await process.acknowledge(txn, Ack(position))
    described = await process.coordinator.describe(txn.txn_id)
    assert described.participants == {
        Participant(SEGMENT),
        Participant(OTHER_SEGMENT),
        Participant(SEGMENT, SUBSCRIPTION),
    }


async def test_open_transactions_are_listed_by_deadline_in_pages() -> None:
    """The earliest deadline is first; a page continues after its last transaction, even if that has ended."""
    world = World()
    process = await world.process()
    begun = [await process.begin(timeout_ms) for timeout_ms in (9_000, 3_000, 6_000, 12_000)]
    ended = await process.begin(1_000)
    await process.commit(ended)
    order = [begun[1], begun[2], begun[0], begun[3]]
    listed = await process.coordinator.list_open(OpenQuery())
    assert [txn.txn_id for txn in listed] == [txn.txn_id for txn in order]
    first = await process.coordinator.list_open(OpenQuery(limit=Limit(2)))
    await process.abort(first[-1])
    following = await process.coordinator.list_open(OpenQuery(after=first[-1].txn_id))
    assert [txn.txn_id for txn in (*first, *following)] == [txn.txn_id for txn in order]
    await world.environment.advance(100)
    await process.begin()
    slow = await process.coordinator.list_open(OpenQuery(age_ms_min=100))
    assert len(slow) == 3


async def test_waiting_for_an_end_reads_nothing_until_one_has_ended() -> None:
    """The watch is armed before the headers are read, so an end in between is not missed."""
    world = World()
    process, other = await world.process(), await world.process()
    one, two = await process.begin(), await process.begin()
    waits = await waiting(process.coordinator.watch_ended(frozenset({one.txn_id, two.txn_id})))
    steps = len(process.wire.steps)
    await waiting(asyncio.sleep(0))
    assert len(process.wire.steps) == steps
    assert not waits.done()
    await other.abort(two)
    assert await waits == {two.txn_id: State.ABORTED}
    unknown = TxnID(0, 999)
    assert await process.coordinator.watch_ended(frozenset({unknown})) == {unknown: State.COMMITTED}
    assert await process.coordinator.watch_ended(frozenset()) == {}
    stop = process.wire.stop(HEADER_GET)
    late = await waiting(process.coordinator.watch_ended(frozenset({one.txn_id})))
    stop.go.set()
    await other.commit(one)
    assert await late == {one.txn_id: State.COMMITTED}


async def test_closing_fails_who_waits_and_may_be_repeated() -> None:
    """Waiting calls fail; a closed coordinator decides nothing."""
    process = await World().process()
    txn = await process.begin()
    waits = await waiting(process.coordinator.watch_ended(frozenset({txn.txn_id})))
    await process.coordinator.close()
    await process.coordinator.close()
    with pytest.raises(Closed):
        await waits
    with pytest.raises(Closed):
        await process.begin()
    with pytest.raises(Closed):
        await process.commit(txn)
