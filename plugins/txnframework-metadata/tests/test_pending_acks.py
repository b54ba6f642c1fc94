"""Acknowledgments that wait for their transactions: put, then look."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import (
    PUT_OPERATION,
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
    NotTransactionOwner,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.interfaces import IPendingAckStore
from txnframework.model import (
    EARLIEST,
    Ack,
    AckRequest,
    Batch,
    Begin,
    Branch,
    Position,
    ProcessedRange,
    State,
    Transaction,
    TxnID,
)
from txnframework.plugin import verify_provider
from txnframework_metadata.options import PendingAckOptions

BOTH = pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "recheck"])
LOOK = step("scan_index", "acks-by-segment-subscription")
ADMIT = step("put", "/txn-op/")
FIRST, SECOND, THIRD = Position(1, 0), Position(1, 1), Position(1, 2)


def withdrawal(name: str, argument: object) -> bool:
    """Match the step that takes a record back."""
    return name == "delete" or (isinstance(argument, Batch) and bool(argument.deletes))


def applied(world: World) -> list[Position]:
    return [ack.position for ack in world.cursor().applied]


def test_it_keeps_the_contract_of_its_role() -> None:
    """verify_provider sees what zope does not."""

    async def main() -> None:
        verify_provider(IPendingAckStore, (await World().process()).pending_acks())

    asyncio.run(main())


@BOTH
def test_acks_take_effect_with_the_commit_and_not_with_the_abort(atomic: bool) -> None:
    """Nor in a branch that the commit does not list; they can be made again then."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn, aborted = await process.begin(), await process.begin()
        await process.acknowledge(txn, Ack(FIRST))
        await process.acknowledge(txn, Ack(SECOND), branch=7)
        await process.acknowledge(aborted, Ack(THIRD))
        assert applied(world) == []
        await process.commit(txn)
        await process.abort(aborted)
        await other.coordinator.settle(txn.txn_id)
        await other.coordinator.settle(aborted.txn_id)
        assert applied(world) == [FIRST]
        assert world.operations() == 0
        later = await other.begin()
        await other.acknowledge(later, Ack(SECOND), Ack(THIRD))
        await other.commit(later)
        await process.coordinator.settle(later.txn_id)
        assert world.cursor().cursor is not None
        assert applied(world) == [FIRST, SECOND, THIRD]

    asyncio.run(main())


@BOTH
def test_two_transactions_cannot_hold_one_message(atomic: bool) -> None:
    """The second one is refused, leaves nothing behind, and says who is in the way; aborting frees the message."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn, second = await process.begin(), await other.begin()
        await process.acknowledge(txn, Ack(FIRST))
        for who in (process, other):
            with pytest.raises(TransactionConflict) as raised:
                await who.acknowledge(second, Ack(SECOND), Ack(FIRST))
            assert raised.value.other == txn.txn_id
        assert world.operations() == 1
        await process.abort(txn)
        await other.acknowledge(second, Ack(SECOND), Ack(FIRST))

    asyncio.run(main())


@BOTH
def test_of_two_processes_that_see_each_other_at_most_one_wins(atomic: bool) -> None:
    """Both put before they look, so neither can miss the other."""

    async def main() -> None:
        for held_up in (PUT_OPERATION, LOOK, ADMIT):
            world = World(atomic=atomic)
            process, other = await world.process(), await world.process()
            one, two = await process.begin(), await other.begin()
            stop = process.wire.stop(held_up)
            first = await waiting(process.acknowledge(one, Ack(FIRST)))
            second = await waiting(other.acknowledge(two, Ack(FIRST)))
            stop.go.set()
            results = await asyncio.gather(first, second, return_exceptions=True)
            assert len([result for result in results if result is None]) <= 1
            for txn, result in zip((one, two), results, strict=True):
                if result is None:
                    await process.commit(txn)
                else:
                    assert isinstance(result, TransactionConflict)
            assert world.operations() == sum(result is None for result in results)

    asyncio.run(main())


@BOTH
def test_within_one_process_exactly_one_of_two_wins(atomic: bool) -> None:
    """One request goes after the other."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        begun = [await process.begin() for _ in range(5)]
        results = await asyncio.gather(*(process.acknowledge(txn, Ack(FIRST)) for txn in begun), return_exceptions=True)
        assert [result is None for result in results].count(True) == 1

    asyncio.run(main())


@BOTH
def test_a_message_of_a_committed_transaction_that_is_not_settled_counts_as_deleted(atomic: bool) -> None:
    """Settled in the middle of the look, the cursor that is read last shows it."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn, second = await process.begin(), await other.begin()
        await process.acknowledge(txn, Ack(FIRST))
        await process.commit(txn)
        with pytest.raises(TransactionConflict, match="already"):
            await other.acknowledge(second, Ack(FIRST))
        stop = other.wire.stop(LOOK)
        late = await waiting(other.acknowledge(second, Ack(FIRST)))
        await process.coordinator.collect(world.environment.now_ms() + 10**9)
        assert applied(world) == [FIRST]
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await late
        assert world.operations() == 0

    asyncio.run(main())


@BOTH
def test_repeating_an_ack_in_its_branch_succeeds(atomic: bool) -> None:
    """Also in part, by another process, and after a plain ack has moved the cursor past it; it leaves one record."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
        await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
        await process.acknowledge(txn, Ack(SECOND))
        assert world.operations() == 1
        await other.acknowledge(txn, Ack(FIRST), Ack(SECOND))
        assert world.operations() == 1
        await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
        assert world.operations() == 1
        await world.cursor().apply(1, (Ack(FIRST),), None)
        await process.acknowledge(txn, Ack(FIRST), Ack(THIRD))
        assert world.operations() == (1 if atomic else 2)

    asyncio.run(main())


@BOTH
def test_an_ack_on_a_transaction_that_has_ended_is_refused(atomic: bool) -> None:
    """Also when it ends while the record is on its way; nothing reaches the cursor."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(PUT_OPERATION)
        late = await waiting(process.acknowledge(txn, Ack(FIRST)))
        await other.commit(txn)
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await late
        with pytest.raises(TransactionConflict):
            await process.acknowledge(txn, Ack(SECOND))
        with pytest.raises(TransactionNotFound):
            await process.pending_acks().add(AckRequest(Branch(TxnID(0, 999)), (Ack(FIRST),), 1))
        with pytest.raises(TransactionDomainMismatch):
            await process.pending_acks().add(AckRequest(Branch(TxnID(0x8000, 9)), (Ack(FIRST),), 1))
        await other.coordinator.settle(txn.txn_id)
        assert applied(world) == []
        assert world.operations() == 0

    asyncio.run(main())


def test_somebody_elses_transaction_takes_no_acknowledgment() -> None:
    """Nothing is recorded for another principal, nor for none; the owner's is."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.coordinator.begin(Begin(60_000, "ada"))
        for principal in ("", "eve"):
            request = AckRequest(branch_of(txn), (Ack(FIRST),), 1, principal=principal)
            with pytest.raises(NotTransactionOwner):
                await process.pending_acks().add(request)
        assert world.operations() == 0
        await process.pending_acks().add(AckRequest(branch_of(txn), (Ack(FIRST),), 1, principal="ada"))
        assert world.operations() == 1

    asyncio.run(main())


def test_without_atomic_batches_an_ack_counts_only_once_it_is_admitted() -> None:
    """Settled before that, it is deleted, and its caller is told; it never reaches the cursor on its own."""

    async def main() -> None:
        world = World(atomic=False)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(ADMIT)
        late = await waiting(process.acknowledge(txn, Ack(FIRST)))
        assert stop.reached.is_set()
        await other.commit(txn)
        await other.coordinator.settle(txn.txn_id)
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await late
        assert applied(world) == []

    asyncio.run(main())


def test_an_ack_admitted_while_it_is_being_settled_is_applied() -> None:
    """The record is deleted as it was read and not as it is now: its caller was told that it counts."""

    async def main() -> None:
        world = World(atomic=False)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(ADMIT)
        adding = await waiting(process.acknowledge(txn, Ack(FIRST)))
        await other.commit(txn)
        settle = other.wire.stop(step("delete", "/txn-op/"))
        settling = await waiting(other.coordinator.settle(txn.txn_id))
        assert settle.reached.is_set()
        stop.go.set()
        await adding
        settle.go.set()
        await settling
        assert applied(world) == [FIRST]
        assert world.operations() == 0

    asyncio.run(main())


@BOTH
@pytest.mark.parametrize("lost", [PUT_OPERATION, ADMIT], ids=["put", "admission"])
def test_a_lost_reply_is_read_back(atomic: bool, lost: object) -> None:
    """The ack is recorded once, and counts."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        process.wire.lose_reply(lost)  # type: ignore[arg-type]
        await process.acknowledge(txn, Ack(FIRST))
        assert world.operations() == 1
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert applied(world) == [FIRST]

    asyncio.run(main())


@BOTH
def test_a_failed_look_withdraws_the_ack_or_says_that_it_cannot_tell(atomic: bool) -> None:
    """A plain failure means that nothing is recorded."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        process.wire.refuse(LOOK)
        with pytest.raises(Unavailable):
            await process.acknowledge(txn, Ack(FIRST))
        assert world.operations() == 0
        process.wire.refuse(LOOK)
        process.wire.refuse(withdrawal)
        with pytest.raises(OutcomeUnknown):
            await process.acknowledge(txn, Ack(FIRST))
        assert world.operations() == 1
        await process.acknowledge(txn, Ack(SECOND))

    asyncio.run(main())


@BOTH
def test_a_write_that_fails_fails_the_ack_and_the_next_one_works(atomic: bool) -> None:
    """So does a cancelled one."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        process.wire.refuse(PUT_OPERATION)
        with pytest.raises(Unavailable):
            await process.acknowledge(txn, Ack(FIRST))
        stop = process.wire.stop(LOOK)
        task = await waiting(process.acknowledge(txn, Ack(FIRST)))
        assert stop.reached.is_set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.acknowledge(txn, Ack(FIRST))
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert set(applied(world)) == {FIRST}

    asyncio.run(main())


@BOTH
def test_acks_of_another_incarnation_are_refused_or_dropped(atomic: bool) -> None:
    """Someone sought or made the subscription again: what was gathered before has no effect after it."""

    async def main() -> None:
        world = World(atomic=atomic)
        process = await world.process()
        txn = await process.begin()
        await process.acknowledge(txn, Ack(FIRST))
        world.cursor().seek(EARLIEST)
        with pytest.raises(TransactionConflict):
            await process.acknowledge(txn, Ack(SECOND))
        other = await process.begin()
        await process.acknowledge(other, Ack(FIRST), incarnation=2)
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert applied(world) == []
        assert world.operations() == 1
        world.cursor().cursor = None
        with pytest.raises(SubscriptionNotFound):
            await process.acknowledge(other, Ack(SECOND), incarnation=2)
        assert world.operations() == 1

    asyncio.run(main())


def test_many_acks_stand_in_few_records_and_hold_together() -> None:
    """A bounded number in each, cumulative ones apart; a conflict in one withdraws all."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn, other = await process.begin(), await process.begin()
        acks = [Ack(Position(2, at)) for at in range(7)]
        await process.acknowledge(txn, *acks, Ack(Position(1, 5), cumulative=True))
        assert world.operations() == 4
        with pytest.raises(TransactionConflict):
            await process.acknowledge(other, *(Ack(Position(2, at)) for at in range(6, 16)))
        assert world.operations() == 4
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert len(applied(world)) == 8

    asyncio.run(main())


def test_the_cursor_moves_before_the_operation_goes() -> None:
    """A cursor that cannot be written keeps the record; repeating it finishes, once."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        await process.acknowledge(txn, Ack(FIRST))
        await process.commit(txn)
        world.cursor().refused = 1
        assert (await process.coordinator.settle(txn.txn_id)).left == 1
        assert world.operations() == 1
        process.wire.lose_reply(step("apply delete", "/txn-op/"))
        await process.coordinator.settle(txn.txn_id)
        await process.coordinator.settle(txn.txn_id)
        assert set(applied(world)) == {FIRST}
        assert world.operations() == 0

    asyncio.run(main())


def test_what_a_batch_processed_comes_to_the_cursor_with_its_ack() -> None:
    """History and cursor are the cursor's business; the range travels with the operation."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        processed = ProcessedRange("query-1", 3, EARLIEST, SECOND, 9)
        request = AckRequest(branch_of(txn), (Ack(SECOND, cumulative=True),), 1, processed)
        await process.pending_acks().add(request)
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert world.cursor().history == [processed]
        assert (await world.cursor().load()).mark_delete == SECOND

    asyncio.run(main())


# -- opening ------------------------------------------------------------------------------------------


async def opened(process: Process) -> tuple[set[TxnID], dict[TxnID, State]]:
    found = await process.pending_acks().recover()
    return set(found.open), found.ended


@BOTH
def test_opening_returns_what_is_held_and_settles_what_has_ended(atomic: bool) -> None:
    """The process that committed died before it settled anything."""

    async def main() -> None:
        world = World(atomic=atomic)
        dead, process = await world.process(), await world.process()
        held, committed, aborted = [await dead.begin() for _ in range(3)]
        ack = Ack(Position(1, 3), 4, frozenset({0, 2}))
        await dead.acknowledge(held, ack, branch=7)
        await dead.acknowledge(committed, Ack(FIRST), Ack(Position(1, 4), 4, frozenset({1})))
        await dead.acknowledge(aborted, Ack(SECOND))
        await dead.commit(committed)
        await dead.abort(aborted)
        found = await process.pending_acks().recover()
        assert found.ended == {committed.txn_id: State.COMMITTED, aborted.txn_id: State.ABORTED}
        (pending,) = found.open[held.txn_id]
        assert (pending.branch, pending.ack, pending.state, pending.incarnation) == (
            branch_of(held, 7),
            ack,
            State.OPEN,
            1,
        )
        assert applied(world) == [FIRST, Position(1, 4)]
        assert world.operations() == 1
        assert await opened(process) == ({held.txn_id}, {})
        with pytest.raises(TransactionConflict):
            await process.acknowledge(await process.begin(), Ack(Position(1, 3), 4, frozenset({2, 3})))
        await process.acknowledge(await process.begin(), Ack(Position(1, 3), 4, frozenset({1, 3})))

    asyncio.run(main())


def test_opening_believes_the_cursor_when_a_header_is_gone() -> None:
    """Settled and collected by another process in the middle of it."""

    async def main() -> None:
        world = World()
        process, other = await world.process(), await world.process()
        txn = await other.begin()
        await other.acknowledge(txn, Ack(FIRST))
        await other.commit(txn)
        stop = process.wire.stop(step("get", "/txn/"))
        opening = await waiting(process.pending_acks().recover())
        assert stop.reached.is_set()
        await other.coordinator.collect(world.environment.now_ms() + 10**9)
        assert world.paths("/txn/") == []
        stop.go.set()
        found = await opening
        assert (found.open, found.ended) == ({}, {})
        assert applied(world) == [FIRST]

    asyncio.run(main())


def test_opening_waits_for_an_ack_that_is_admitted_at_the_same_time() -> None:
    """It must not hand out a message whose ack counts and is not on the cursor yet."""

    async def main() -> None:
        world = World(atomic=False)
        process, opener = await world.process(), await world.process()
        txn = await process.begin()
        stop = process.wire.stop(ADMIT)
        adding = await waiting(process.acknowledge(txn, Ack(FIRST)))
        await process.commit(txn)
        delete = opener.wire.stop(step("delete", "/txn-op/"))
        opening = await waiting(opener.pending_acks().recover())
        assert delete.reached.is_set()
        stop.go.set()
        await adding
        delete.go.set()
        await opening
        assert applied(world) == [FIRST]

    asyncio.run(main())


def test_subscriptions_and_segments_do_not_see_each_other() -> None:
    """A name that begins with another one, and the same subscription of another segment."""

    async def main() -> None:
        world = World()
        process = await world.process()
        one, two = await process.begin(), await process.begin()
        await process.acknowledge(one, Ack(FIRST))
        for segment, subscription in ((SEGMENT, f"{SUBSCRIPTION}-2"), (f"{SEGMENT}/x", SUBSCRIPTION)):
            await process.pending_acks(segment, subscription).add(AckRequest(branch_of(two), (Ack(FIRST),), 1))
        await process.commit(one)
        await process.coordinator.settle(one.txn_id)
        assert world.operations() == 2

    asyncio.run(main())


def test_a_closed_store_says_so() -> None:
    """Every call raises Closed; closing may be repeated; nothing to acknowledge is nothing to do."""

    async def main() -> None:
        process = await World().process()
        txn: Transaction = await process.begin()
        await process.acknowledge(txn)
        acks = process.pending_acks()
        ended = await process.abort(txn)
        await acks.close()
        await acks.close()
        for call in (acks.recover(), process.acknowledge(txn, Ack(FIRST)), acks.settle(ended)):
            with pytest.raises(Closed):
                await call
        assert issubclass(Closed, TxnFrameworkError)

    asyncio.run(main())


@BOTH
def test_repeating_a_confirmed_ack_never_withdraws_it(atomic: bool) -> None:
    """Not when the repeat is lost on its way and another transaction's record stands for a moment."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn, rival = await process.begin(), await other.begin()
        await process.acknowledge(txn, Ack(FIRST))
        stop = other.wire.stop(LOOK)
        late = await waiting(other.acknowledge(rival, Ack(FIRST)))
        assert stop.reached.is_set()
        process.wire.drop(PUT_OPERATION)
        await process.acknowledge(txn, Ack(FIRST))
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await late
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert applied(world) == [FIRST]

    asyncio.run(main())


def test_an_ack_that_was_never_confirmed_is_judged_again_when_it_is_repeated() -> None:
    """Its record may stand beside a confirmed one of another transaction, with which it must not be applied."""

    async def main() -> None:
        world = World()
        process, other = await world.process(), await world.process()
        txn, rival = await process.begin(), await other.begin()
        await other.acknowledge(rival, Ack(FIRST))
        process.wire.refuse(withdrawal)
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                await process.acknowledge(txn, Ack(FIRST))
        await other.abort(rival)
        await process.acknowledge(txn, Ack(FIRST))
        assert world.operations() == 2, "the rival's, and of its own only the one that was confirmed"
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert applied(world) == [FIRST]

    asyncio.run(main())


def test_an_ack_whose_record_another_process_made_is_not_touched_on_a_conflict() -> None:
    """Whether it was confirmed there cannot be told from here: the outcome is unknown, and the record stays."""

    async def main() -> None:
        world = World()
        process, other, third = await world.process(), await world.process(), await world.process()
        txn, rival = await process.begin(), await third.begin()
        await process.acknowledge(txn, Ack(FIRST))
        stop = third.wire.stop(LOOK)
        late = await waiting(third.acknowledge(rival, Ack(FIRST)))
        assert stop.reached.is_set()
        with pytest.raises(OutcomeUnknown):
            await other.acknowledge(txn, Ack(FIRST))
        stop.go.set()
        with pytest.raises(TransactionConflict):
            await late
        await process.commit(txn)
        await other.coordinator.settle(txn.txn_id)
        assert applied(world) == [FIRST]

    asyncio.run(main())


@BOTH
def test_an_ack_of_unknown_outcome_on_a_transaction_that_has_ended_stays_unknown(atomic: bool) -> None:
    """It may have been recorded while the transaction was open, and then its commit counts."""

    async def main() -> None:
        world = World(atomic=atomic)
        process, other = await world.process(), await world.process()
        txn = await process.begin()
        process.wire.lose_reply(PUT_OPERATION)
        stop = process.wire.stop(step("scan", "/txn-op/"))
        adding = await waiting(process.acknowledge(txn, Ack(FIRST)))
        assert stop.reached.is_set()
        await other.commit(txn)
        stop.go.set()
        with pytest.raises(OutcomeUnknown):
            await adding
        process.wire.lose_reply(PUT_OPERATION)
        process.wire.refuse(step("scan", "/txn-op/"))
        with pytest.raises(OutcomeUnknown):
            await process.acknowledge(await process.begin(), Ack(SECOND))

    asyncio.run(main())


def test_confirmed_records_are_remembered_in_a_bounded_number() -> None:
    """Repeating one that was forgotten is judged anew and succeeds."""

    async def main() -> None:
        world = World()
        world.pending_ack_options = PendingAckOptions(page_records=3, confirmed_records_max=1)
        process = await world.process()
        txn = await process.begin()
        for position in (FIRST, SECOND, FIRST, SECOND):
            await process.acknowledge(txn, Ack(position), branch=position.entry_id)
        assert world.operations() == 2

    asyncio.run(main())


# -- records that grow --------------------------------------------------------------------------------


def test_later_acks_go_into_the_record_that_is_there() -> None:
    """Up to its bound; a full one gets a successor; of cumulative ones only the furthest is kept."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        for at in range(7):
            await process.acknowledge(txn, Ack(Position(2, at)))
        assert world.operations() == 3
        for at in range(7):
            await process.acknowledge(txn, Ack(Position(1, at), cumulative=True))
        assert world.operations() == 4
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert set(applied(world)) == {Position(1, 6), *(Position(2, at) for at in range(7))}

    asyncio.run(main())


def test_a_message_of_a_batch_each_time_costs_one_position() -> None:
    """Parts of one entry are joined, and come apart again when the last one is refused."""

    async def main() -> None:
        world = World()
        process, other = await world.process(), await world.process()
        txn, rival = await process.begin(), await other.begin()
        await other.acknowledge(rival, Ack(FIRST, 9, frozenset({8})))
        for index in range(8):
            await process.acknowledge(txn, Ack(FIRST, 9, frozenset({index})))
        with pytest.raises(TransactionConflict):
            await process.acknowledge(txn, Ack(FIRST, 9))
        assert world.operations() == 2
        await process.acknowledge(txn, Ack(FIRST, 9, frozenset(range(8))))
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert (await world.cursor().load()).partial == {FIRST: frozenset(range(8))}

    asyncio.run(main())


@pytest.mark.parametrize("applied_first", [True, False])
def test_growing_with_a_lost_reply_is_read_back(applied_first: bool) -> None:
    """The record tells by itself whether it grew; if not, it is tried again."""

    async def main() -> None:
        world = World()
        process = await world.process()
        txn = await process.begin()
        await process.acknowledge(txn, Ack(FIRST))
        (process.wire.lose_reply if applied_first else process.wire.drop)(PUT_OPERATION)
        await process.acknowledge(txn, Ack(SECOND))
        await process.acknowledge(txn, Ack(THIRD))
        assert world.operations() == 1
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert applied(world) == [FIRST, SECOND, THIRD]

    asyncio.run(main())


def test_what_a_withdrawal_left_in_doubt_grows_no_more() -> None:
    """What was confirmed before may be repeated; what comes later has a record of its own."""

    async def main() -> None:
        world = World()
        process, other = await world.process(), await world.process()
        txn, rival = await process.begin(), await other.begin()
        await process.acknowledge(txn, Ack(FIRST))
        await other.acknowledge(rival, Ack(SECOND))
        stop = process.wire.stop(LOOK)
        adding = await waiting(process.acknowledge(txn, Ack(SECOND)))
        assert stop.reached.is_set()
        process.wire.refuse(PUT_OPERATION)
        stop.go.set()
        with pytest.raises(OutcomeUnknown):
            await adding
        await process.acknowledge(txn, Ack(FIRST))
        await process.acknowledge(txn, Ack(THIRD))
        assert world.operations() == 3
        with pytest.raises(OutcomeUnknown):
            await process.acknowledge(txn, Ack(SECOND))

    asyncio.run(main())


def test_acks_at_the_same_time_cost_one_write() -> None:
    """And one look: what waits while a group is under way goes with the next one."""

    async def main() -> None:
        world = World()
        world.pending_ack_options = PendingAckOptions()
        process = await world.process()
        txn = await process.begin()
        process.wire.steps.clear()
        await asyncio.gather(*(process.acknowledge(txn, Ack(Position(1, at))) for at in range(50)))
        assert [name for name, _ in process.wire.steps] == ["get", "apply", "scan_index"]

    asyncio.run(main())


def test_a_record_goes_only_once_all_of_it_stands_in_another() -> None:
    """
    Of two acknowledgments that one record held, repeated together, one is in conflict now: the new record holds only
    the other, and the earlier one, which may have been confirmed, stays.
    """

    async def main() -> None:
        world = World()
        world.pending_ack_options = PendingAckOptions(confirmed_records_max=1)
        process, dies = await world.process(), await world.process()
        txn, other = await process.begin(), await process.begin()
        await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
        await process.acknowledge(txn, Ack(THIRD), branch=7)  # so that the record is not remembered
        dies.wire.stop(LOOK)
        task = await waiting(dies.acknowledge(other, Ack(SECOND)))
        results = await asyncio.gather(
            process.acknowledge(txn, Ack(FIRST)), process.acknowledge(txn, Ack(SECOND)), return_exceptions=True
        )
        assert [type(one) for one in results] == [type(None), OutcomeUnknown]
        task.cancel()
        await process.abort(other)
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert {FIRST, SECOND} <= set(applied(world))

    asyncio.run(main())
