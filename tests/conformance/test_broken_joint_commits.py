"""The rules of transactions in one step detect faults: each family here breaks one, and its test fails."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from txnframework.errors import InvalidTransactionState, LedgerSealed, OutcomeUnknown, TxnFrameworkError
from txnframework.interfaces import IDatabaseTransaction, IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.model import AckRequest, Begin, Position, State, TxnID
from txnframework.model.joint import JointAck, JointCommit, JointCommitted
from txnframework.model.metadata import Expect, Record
from txnframework.model.positions import EARLIEST
from txnframework.model.steps import Applied, Step
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing import JointCommitSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.buffer.buffer import MetadataBuffer
from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
from txnframework_metadata.pending_acks.store import MetadataPendingAcks
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)

YEAR_MS = 365 * 24 * 3_600_000

# -- coordinators -------------------------------------------------------------------------------------


class RepeatsIds(MetadataCoordinator):
    """Always reserves the same id."""

    async def reserve_id(self) -> TxnID:
        self._only = getattr(self, "_only", None) or await super().reserve_id()
        return self._only


class BeginsWhatItReserves(MetadataCoordinator):
    """Uses the id of a transaction that is open."""

    async def reserve_id(self) -> TxnID:
        return (await self.begin(Begin(1_000))).txn_id


class _Changing(MetadataCoordinator):
    """Changes each step."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(context)
        change = self.changed

        class Changed(ForwardingProxy):
            async def apply(self, step: Step, *transaction: IDatabaseTransaction) -> Applied:
                done: Applied = await self._behind.apply(change(step), *transaction)
                return done

        self._store = Changed(self._store)

    def changed(self, step: Step) -> Step:
        return step


class LooksAtNothing(_Changing):
    """Does not check that no other transaction holds an acknowledgment."""

    def changed(self, step: Step) -> Step:
        return msgspec.structs.replace(step, vacant=())


class OverwritesCursors(_Changing):
    """Moves cursors without comparing their versions."""

    def changed(self, step: Step) -> Step:
        header, *cursors = step.puts
        puts = (header, *(msgspec.structs.replace(one, expected=Expect.ANY) for one in cursors))
        return msgspec.structs.replace(step, puts=puts)


class CommitsInTwoWrites(MetadataCoordinator):
    """Moves the cursors first."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        await self._store.put(request.acks[0].move.put)
        done = await super().commit_jointly(msgspec.structs.replace(request, acks=()), transaction)
        return JointCommitted(done.positions, (Record(request.acks[0].move.put.key, b"", 1),))


class AppendsFirst(MetadataCoordinator):
    """Appends the entries in a step of their own."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        await self._store.apply(Step(appends=request.appends))
        return await super().commit_jointly(request, transaction)


class FailsOnLostReplies(MetadataCoordinator):
    """Reports a lost reply as an abort, without a fence."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        try:
            return await super().commit_jointly(request, transaction)
        except OutcomeUnknown:
            raise InvalidTransactionState(request.transactions[0].txn_id, State.ABORTED, "no reply came") from None


class PutsNoFence(MetadataCoordinator):
    """Takes a missing header for an aborted transaction, without a fence."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        self._store, store = _WithoutPuts(self._store), self._store
        try:
            return await super().commit_jointly(request, transaction)
        finally:
            self._store = store


class _WithoutPuts(ForwardingProxy):
    async def put(self, *_: object) -> int:
        return 1


class FencesAtAnyTime(MetadataCoordinator):
    """Fences at any time, even when the header may have been collected."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(context)
        self._transactions = msgspec.structs.replace(self._transactions, retention_ms=YEAR_MS)


class DoubtsEverything(MetadataCoordinator):
    """Raises OutcomeUnknown for a lost reply, without reading the header."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        done = await super().commit_jointly(request, transaction)
        if done.positions is None:
            raise OutcomeUnknown("the reply was lost")
        return done


class ForgetsTheEntries(MetadataCoordinator):
    """Stores a committed transaction without its entries."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        await super().commit_jointly(msgspec.structs.replace(request, appends=()), transaction)
        return JointCommitted(tuple((EARLIEST,) * len(one.entries) for one in request.appends), ())


class StepsBesideTheRows(MetadataCoordinator):
    """Makes the step by the store's own connection, and then commits the rows."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        done = await super().commit_jointly(request)
        if transaction is not None:
            await transaction.commit()
        return done


class LeavesTheCommit(MetadataCoordinator):
    """Leaves the COMMIT to its caller."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        return await super().commit_jointly(request, None if transaction is None else _Changed(transaction, "commit"))


class HoldsTheConnection(MetadataCoordinator):
    """Does not roll back after a lost reply."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        return await super().commit_jointly(request, None if transaction is None else _Changed(transaction, "rollback"))


class CommitsRowsWithoutTheStep(MetadataCoordinator):
    """Commits the rows although the step is refused."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        try:
            return await super().commit_jointly(request, transaction)
        except LedgerSealed:
            assert transaction is not None
            await transaction.commit()
            raise


class HidesTheDriver(MetadataCoordinator):
    """Raises an error of its own instead of the driver's."""

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        try:
            return await super().commit_jointly(request, transaction)
        except TxnFrameworkError:
            raise
        except Exception as error:
            raise OutcomeUnknown(str(error)) from error


class _Changed(ForwardingProxy):
    """A transaction without the named operation."""

    def __init__(self, behind: object, left_out: str) -> None:
        super().__init__(behind)
        self._left_out = left_out

    async def commit(self) -> None:
        if self._left_out != "commit":
            await self._behind.commit()

    async def rollback(self) -> None:
        if self._left_out != "rollback":
            await self._behind.rollback()


# -- buffers and pending acknowledgments --------------------------------------------------------------


class SeesTheFuture(MetadataBuffer):
    """Reports entries as seen that do not exist."""

    async def tail_seen(self) -> Position:
        seen = await super().tail_seen()
        return Position(seen.ledger_id + 1, 7)


class PlansTogether(MetadataPendingAcks):
    """Lets two plans expect the same cursor."""

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> JointAck | None:
        planned = await super().plan_joint(requests)
        if planned is not None:
            assert self._joint is not None
            self._joint._turn.release()
        return planned

    async def finish_joint(self, planned: JointAck, written: Record | None) -> None:
        assert self._joint is not None
        await self._joint._cursor.finish(planned.move, written)


COORDINATORS: list[tuple[type[MetadataCoordinator], str]] = [
    (RepeatsIds, "test_ids_never_repeat"),
    (BeginsWhatItReserves, "test_a_reserved_id_is_no_transaction"),
    (AppendsFirst, "test_everything_in_one_write"),
    (LooksAtNothing, "test_an_acknowledgment_that_another_transaction_holds"),
    (LooksAtNothing, "test_an_acknowledgment_between_plan_and_step"),
    (LooksAtNothing, "test_one_of_two_transactions_acknowledges"),
    (OverwritesCursors, "test_an_acknowledgment_between_plan_and_step"),
    (CommitsInTwoWrites, "test_acknowledgments_in_the_same_write"),
    (FailsOnLostReplies, "test_cut_off_after_the_step"),
    (PutsNoFence, "test_a_late_step"),
    (FencesAtAnyTime, "test_a_reply_that_is_lost_too_late"),
    (DoubtsEverything, "test_a_lost_reply"),
    (ForgetsTheEntries, "test_forgotten_transactions_stay_committed"),
    (StepsBesideTheRows, "test_a_step_with_rows"),
    (LeavesTheCommit, "test_a_step_with_rows"),
    (LeavesTheCommit, "test_acknowledgments_with_rows"),
    (HoldsTheConnection, "test_a_lost_commit_with_rows"),
    (DoubtsEverything, "test_a_lost_commit_with_rows"),
    (PutsNoFence, "test_a_late_commit_with_rows"),
    (FailsOnLostReplies, "test_a_commit_with_rows_and_no_store"),
    (CommitsRowsWithoutTheStep, "test_a_step_with_rows_that_is_refused"),
    (HidesTheDriver, "test_a_commit_with_rows_that_fails"),
]
BUFFERS: list[tuple[type[MetadataBuffer], str]] = [
    (SeesTheFuture, "test_entries_are_behind_what_was_seen"),
]
PENDING_ACKS: list[tuple[type[MetadataPendingAcks], str]] = [
    (PlansTogether, "test_plans_follow_one_another"),
]


class FamilyInOneMemory(WorldHarness):
    """The metadata family, of which a test replaces one part."""

    patience_s = 0.2
    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    one_database = True
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


@pytest.mark.parametrize(("broken", "name"), COORDINATORS)
def test_broken_coordinators(broken: type[MetadataCoordinator], name: str, must_fail: Callable[..., None]) -> None:
    """A coordinator that breaks the rule fails its test."""

    async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
        return broken(context)

    class Broken(FamilyInOneMemory):
        coordinator = Provider("broken", open_coordinator, broken)

    must_fail(JointCommitSuite, Broken, name)


@pytest.mark.parametrize(("broken", "name"), BUFFERS)
def test_broken_buffers(broken: type[MetadataBuffer], name: str, must_fail: Callable[..., None]) -> None:
    """A buffer that breaks the rule fails its test."""

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        return broken(context)

    class Broken(FamilyInOneMemory):
        buffer = Provider("broken", open_buffer, broken)

    must_fail(JointCommitSuite, Broken, name)


@pytest.mark.parametrize(("broken", "name"), PENDING_ACKS)
def test_broken_pending_acks(broken: type[MetadataPendingAcks], name: str, must_fail: Callable[..., None]) -> None:
    """A pending-ack store that breaks the rule fails its test."""

    async def open_store(context: SubscriptionContext) -> IPendingAckStore:
        return broken(context)

    class Broken(FamilyInOneMemory):
        pending_acks = Provider("broken", open_store, broken)

    must_fail(JointCommitSuite, Broken, name)
