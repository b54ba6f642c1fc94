"""Rules of IJointCoordinator, IJointBuffer and IJointPendingAcks: transactions that are one step of a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from txnframework.errors import (
    InvalidTransactionState,
    LedgerSealed,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    VersionMismatch,
)
from txnframework.interfaces import (
    IColocatedLedger,
    IColocatedLedgerStore,
    IJointBuffer,
    IJointCoordinator,
    IJointPendingAcks,
)
from txnframework.model import Ack, AckRequest, Append, Branch, Position, State, TxnID
from txnframework.model.colocated import JointAppend, JointAppended, LedgerAppend
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.joint import JointAck, JointCommit, JointCommitted
from txnframework.model.metadata import Record
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.reads import Isolation, ReadRequest
from txnframework.model.transactions import OpenQuery
from txnframework.plugin import CoordinatorContext
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing._suites._coordinator._case import committed_entry, is_acknowledged, state_in
from txnframework.testing._suites._processes import ProcessRules, abort, begin, commit, held_up
from txnframework.testing.capabilities import OfKind, requires
from txnframework.testing.clock import run_ready
from txnframework.testing.world import SEGMENT, World, WorldHarness

TAKES_ACKS = OfKind("takes_acks", True)
_ALL = Limit(100)


class LateSteps(ForwardingProxy):
    """A ledger store whose replies are lost at once, and whose joint appends are applied later, if at all."""

    def __init__(self, behind: IColocatedLedgerStore) -> None:
        super().__init__(behind)
        self.late: list[JointAppend] = []

    async def append_jointly(self, request: JointAppend) -> JointAppended:
        """Lose the step on its way."""
        self.late.append(request)
        raise OutcomeUnknown("the step is on its way")


class SlowReplies(ForwardingProxy):
    """A ledger store whose joint appends are applied, and whose replies are lost after ``meanwhile``."""

    def __init__(self, behind: IColocatedLedgerStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(behind)
        self._meanwhile = meanwhile

    async def append_jointly(self, request: JointAppend) -> JointAppended:
        """Apply the step, and lose the reply."""
        await self._behind.append_jointly(request)
        await self._meanwhile()
        raise OutcomeUnknown("the reply is lost")


class JointCommitRules(ProcessRules):
    """A transaction in one step is there for every process as a whole, or not at all."""

    data: WorldHarness
    capabilities: ClassVar[tuple[Any, ...]] = (TAKES_ACKS,)

    def subjects(self, opened: World) -> tuple[object, ...]:
        """Return the object that may declare capabilities: the coordinator."""
        return (opened.coordinator,)

    async def test_ids_never_repeat(self) -> None:
        """Reserved ids and those of other transactions are all different, in every process."""
        async with self.data.open() as world, self.data.open() as other:
            found = [await _joint(one).reserve_id() for one in (world, other) for _ in range(10)]
            found += [await begin(one) for one in (world, other)]
            assert len(set(found)) == len(found)

    async def test_a_reserved_id_is_no_transaction(self) -> None:
        """An id that is never used is not listed, and holds no reader back."""
        async with self.data.open() as world, self.data.open() as other:
            await _joint(world).reserve_id()
            assert await other.coordinator.list_open(OpenQuery()) == ()
            done = await _commit(world, b"x")
            assert await _read(other) == [b"x"]
            assert done.positions is not None

    async def test_everything_in_one_write(self) -> None:
        """One write stores the entries; each process describes a committed transaction with nothing outstanding."""
        async with self.data.open() as world, self.data.open() as other:
            joint = _joint(world)
            txn = await joint.reserve_id()
            written = world.connection.writes
            done = await joint.commit_jointly(_request(world, txn, b"x", b"y", principal="ada"))
            assert world.connection.writes == written + 1
            for process in (world, other):
                found = await process.coordinator.describe(txn)
                assert (found.state, found.principal, found.participants) == (State.COMMITTED, "ada", frozenset())
                assert found.counts(0)
                assert await process.coordinator.outstanding(None, _ALL) == ()
            assert done.positions is not None
            ((first, second),) = done.positions
            assert first < second
            page = await other.buffer.read(ReadRequest(EARLIEST, _ALL, Isolation.READ_COMMITTED))
            assert [(one.position, one.branch) for one in page.entries] == [(at, Branch(txn)) for at in (first, second)]

    async def test_waiting_readers_wake(self) -> None:
        """Readers that wait in ``advanced`` see the entries: in another process, and in the one that made the step."""
        async with self.data.open() as world, self.data.open() as other:
            end = await world.buffer.max_read_position()
            waiting = [asyncio.ensure_future(one.buffer.advanced(end)) for one in (world, other)]
            await run_ready()
            done = await _commit(world, b"x")
            assert done.positions is not None
            await IJointBuffer(world.buffer).appended_jointly(done.positions[0][-1])
            await self.data.settle()
            assert await asyncio.gather(*waiting) == [done.positions[0][-1]] * 2

    async def test_entries_are_behind_what_was_seen(self) -> None:
        """``tail_seen`` is before the entries of later steps, and names the last entry after ``appended_jointly``."""
        async with self.data.open() as world, self.data.open() as other:
            buffer = IJointBuffer(world.buffer)
            await _commit(other, b"earlier")
            before = await buffer.tail_seen()
            done = await _commit(world, b"x")
            assert done.positions is not None
            assert before < done.positions[0][0]
            await buffer.appended_jointly(done.positions[0][-1])
            assert await buffer.tail_seen() >= done.positions[0][-1]

    async def test_open_transactions_hold_the_entries_back(self) -> None:
        """Entries behind those of an open transaction are read after it has ended, in the order of their positions."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(other)
            data = encode_entry([EntryMessage(None, b"open", (), 0, 0)], "suite", Branch(txn))
            await other.buffer.append((Append(data, 1, Branch(txn)),))
            await _commit(world, b"x")
            assert await _read(world) == await _read(other) == []
            await commit(other, txn)
            await other.coordinator.settle(txn)
            assert await _read(world) == await _read(other) == [b"open", b"x"]

    async def test_a_sealed_segment(self) -> None:
        """A sealed segment refuses everything, and the id stays unknown."""
        async with self.data.open() as world, self.data.open() as other:
            await other.ledger.seal()
            txn = await _joint(world).reserve_id()
            with pytest.raises(LedgerSealed):
                await _joint(world).commit_jointly(_request(world, txn, b"x"))
            await self._nothing_of(other, txn)

    async def test_a_lost_reply(self) -> None:
        """After a lost reply, the header shows that the step was applied."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _joint(world).reserve_id()
            world.connection.lose(1)
            done = await _joint(world).commit_jointly(_request(world, txn, b"x"))
            assert done == JointCommitted(None, None)
            assert await state_in(other, txn) is State.COMMITTED
            assert await _read(other) == [b"x"]

    async def test_a_late_step(self) -> None:
        """A step that was given up is aborted, and refused when it comes late, also after a second attempt."""
        async with self.data.open() as world, self.data.open() as other:
            late = LateSteps(IColocatedLedgerStore(world.ledgers))
            async with self._with_ledgers(world, late) as joint:
                txn = await joint.reserve_id()
                with pytest.raises(InvalidTransactionState) as caught:
                    await joint.commit_jointly(_request(world, txn, b"late"))
                assert caught.value.actual is State.ABORTED
                assert await state_in(other, txn) is State.ABORTED
                await _commit(world, b"second")
                with pytest.raises(VersionMismatch):
                    await late._behind.append_jointly(*late.late)
            assert await _read(other) == [b"second"]

    async def test_a_reply_that_is_lost_too_late(self) -> None:
        """If the header may be collected by the time the reply is lost, the outcome is unknown, and not ABORTED."""
        async with self.data.open() as world, self.data.open() as other:

            async def forget() -> None:
                await self.data.pass_time(self.data.transactions.retention_ms)
                await self.forget_ended(world)

            slow = SlowReplies(IColocatedLedgerStore(world.ledgers), forget)
            async with self._with_ledgers(world, slow) as joint:
                txn = await joint.reserve_id()
                with pytest.raises(OutcomeUnknown):
                    await joint.commit_jointly(_request(world, txn, b"x"))
            with pytest.raises(TransactionNotFound):
                await other.coordinator.describe(txn)
            assert await _read(other) == [b"x"]

    async def test_cut_off_after_the_step(self) -> None:
        """If the header cannot be read after a lost reply, the outcome is unknown; the header has it."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _joint(world).reserve_id()
            world.connection.cut_at(1)
            with pytest.raises(OutcomeUnknown):
                await _joint(world).commit_jointly(_request(world, txn, b"x"))
            world.connection.restore()
            assert await state_in(other, txn) is State.COMMITTED
            assert await _read(other) == [b"x"]

    async def test_killed_before_the_step(self) -> None:
        """A process that is killed before the step leaves nothing."""
        async with self.data.open() as survivor:
            async with self.data.open() as world:
                txn = await _joint(world).reserve_id()
                work = _joint(world).commit_jointly(_request(world, txn, b"x"))
                async with held_up(world.connection, 1, work) as (task, reached):
                    assert reached
                    world.connection.is_cut = True
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await self._nothing_of(survivor, txn)

    async def test_forgotten_transactions_stay_committed(self) -> None:
        """Entries can be read after the header was collected."""
        async with self.data.open() as world, self.data.open() as other:
            await _commit(world, b"x")
            await self.forget_ended(world)
            assert await _read(other) == [b"x"]

    # -- acknowledgments ------------------------------------------------------------------------------

    @requires(TAKES_ACKS)
    async def test_acknowledgments_in_the_same_write(self) -> None:
        """The cursor moves with the commit, and the message stays acknowledged for every process."""
        async with self.data.open() as world, self.data.open() as other:
            at = await committed_entry(other)
            txn, planned = await _planned(world, at)
            written = world.connection.writes
            done = await _joint(world).commit_jointly(_request(world, txn, b"out", acks=(planned,)))
            assert world.connection.writes == written + 1
            await _acks(world).finish_joint(planned, _only(done.cursors))
            assert await is_acknowledged(world, at)
            assert await is_acknowledged(other, at)
            with pytest.raises(TransactionConflict):
                await _acknowledge(other, await begin(other), at)

    @requires(TAKES_ACKS)
    async def test_a_message_that_is_acknowledged_already(self) -> None:
        """Such a message, and one that was received before a seek, are left to ``add``, which reports them."""
        async with self.data.open() as world, self.data.open() as other:
            at = await committed_entry(other)
            txn = await begin(other)
            await _acknowledge(other, txn, at)
            await commit(other, txn)
            await other.coordinator.settle(txn)
            assert await _plan(world, at) is None
            await other.cursor.seek(EARLIEST)
            request = AckRequest(Branch(await _joint(world).reserve_id()), (Ack(at),), incarnation=1)
            assert await _acks(world).plan_joint(request) is None

    @requires(TAKES_ACKS)
    async def test_an_acknowledgment_that_another_transaction_holds(self) -> None:
        """While another transaction holds an acknowledgment, the step is refused; later it is not."""
        async with self.data.open() as world, self.data.open() as other:
            at, free = await committed_entry(other), await committed_entry(other)
            txn = await begin(other)
            await _acknowledge(other, txn, at)
            await self._refused(world, at)
            await abort(other, txn)
            await other.coordinator.settle(txn)
            joint, planned = await _planned(world, at)
            done = await _joint(world).commit_jointly(_request(world, joint, acks=(planned,)))
            await _acks(world).finish_joint(planned, _only(done.cursors))
            assert await is_acknowledged(other, at)
            assert not await is_acknowledged(other, free)

    @requires(TAKES_ACKS)
    async def test_an_acknowledgment_between_plan_and_step(self) -> None:
        """One that another transaction stores after the plan, and one that moves the cursor, refuse the step."""
        async with self.data.open() as world, self.data.open() as other:
            for ends in (False, True):
                at = await committed_entry(other)
                joint, planned = await _planned(world, at)
                txn = await begin(other)
                await _acknowledge(other, txn, at)
                if ends:
                    await commit(other, txn)
                    await other.coordinator.settle(txn)
                with pytest.raises(VersionMismatch):
                    await _joint(world).commit_jointly(_request(world, joint, b"x", acks=(planned,)))
                await _acks(world).finish_joint(planned, None)
                await self._nothing_of(other, joint)
                if not ends:
                    await abort(other, txn)
                    await other.coordinator.settle(txn)
            assert await is_acknowledged(world, at)

    @requires(TAKES_ACKS)
    async def test_one_of_two_transactions_acknowledges(self) -> None:
        """However a step and a transaction of several steps meet at one message, at most one of them succeeds."""
        for step in range(1, 8):
            async with self.data.open() as world, self.data.open() as other:
                at = await committed_entry(other)
                txn = await begin(other)
                async with held_up(other.connection, step, _acknowledge(other, txn, at)) as (task, _):
                    planned = await _plan(world, at)
                    if planned is None:
                        made = False
                    else:
                        try:
                            done = await _joint(world).commit_jointly(
                                _request(world, planned.move.branch.txn_id, acks=(planned,))
                            )
                            made = True
                        except VersionMismatch:
                            made = False
                        await _acks(world).finish_joint(planned, _only(done.cursors) if made else None)
                    other.connection.restore()
                    (outcome,) = await asyncio.gather(task, return_exceptions=True)
                if outcome is None:
                    await commit(other, txn)
                    await other.coordinator.settle(txn)
                else:
                    await abort(other, txn)
                    await other.coordinator.settle(txn)
                assert [made, outcome is None].count(True) <= 1, f"both took effect when held at step {step}"
                assert await is_acknowledged(world, at) == (made or outcome is None)

    @requires(TAKES_ACKS)
    async def test_plans_follow_one_another(self) -> None:
        """A second plan of a subscription waits until the first is finished, and then expects the moved cursor."""
        async with self.data.open() as world:
            first, second = await committed_entry(world), await committed_entry(world)
            joint, planned = await _planned(world, first)
            waiting = asyncio.ensure_future(_plan(world, second))
            await self.data.settle()
            assert not waiting.done()
            done = await _joint(world).commit_jointly(_request(world, joint, acks=(planned,)))
            await _acks(world).finish_joint(planned, _only(done.cursors))
            later = await waiting
            assert later is not None
            done = await _joint(world).commit_jointly(_request(world, later.move.branch.txn_id, acks=(later,)))
            await _acks(world).finish_joint(later, _only(done.cursors))
            assert await is_acknowledged(world, first)
            assert await is_acknowledged(world, second)

    @requires(TAKES_ACKS)
    async def test_a_plan_that_is_given_up(self) -> None:
        """A plan without a step changes nothing, and the next plan follows."""
        async with self.data.open() as world:
            at = await committed_entry(world)
            _, planned = await _planned(world, at)
            await _acks(world).finish_joint(planned, None)
            assert not await is_acknowledged(world, at)
            joint, planned = await _planned(world, at)
            done = await _joint(world).commit_jointly(_request(world, joint, acks=(planned,)))
            await _acks(world).finish_joint(planned, _only(done.cursors))
            assert await is_acknowledged(world, at)

    async def _refused(self, world: World, at: Position) -> None:
        """Check that a step that acknowledges a message is refused."""
        joint, planned = await _planned(world, at)
        with pytest.raises(VersionMismatch):
            await _joint(world).commit_jointly(_request(world, joint, b"x", acks=(planned,)))
        await _acks(world).finish_joint(planned, None)
        await self._nothing_of(world, joint)

    async def _nothing_of(self, world: World, txn: TxnID) -> None:
        """Check that nothing of a transaction is stored."""
        page = await world.buffer.read(ReadRequest(EARLIEST, _ALL, Isolation.READ_UNCOMMITTED))
        assert all(one.branch is None or one.branch.txn_id != txn for one in page.entries)
        assert all(one.txn_id != txn for one in await world.coordinator.list_open(OpenQuery()))

    @asynccontextmanager
    async def _with_ledgers(self, world: World, ledgers: ForwardingProxy) -> AsyncIterator[IJointCoordinator]:
        """Open another coordinator over the records of a process and another ledger store."""
        coordinator = await self.data.coordinator.open(
            CoordinatorContext(
                world.store,
                IColocatedLedgerStore(ledgers),
                world.participants,
                self.data.environment,
                transactions=self.data.transactions,
            )
        )
        try:
            yield IJointCoordinator(coordinator)
        finally:
            await coordinator.close()


def _joint(world: World) -> IJointCoordinator:
    return IJointCoordinator(world.coordinator)


def _acks(world: World) -> IJointPendingAcks:
    return IJointPendingAcks(world.acks)


def _only(cursors: tuple[Record, ...] | None) -> Record:
    assert cursors is not None, "the reply was not lost"
    (cursor,) = cursors
    return cursor


def _request(
    world: World, txn: TxnID, *texts: bytes, acks: tuple[JointAck, ...] = (), principal: str = ""
) -> JointCommit:
    """Return a transaction with one entry for each text."""
    assert IColocatedLedger.providedBy(world.ledger)
    entries = tuple(
        Append(encode_entry([EntryMessage(None, text, (), number, 0)], "suite", Branch(txn)), 1, Branch(txn))
        for number, text in enumerate(texts)
    )
    appends = (LedgerAppend(world.ledger.reference, entries),) if entries else ()
    return JointCommit(txn, principal, appends, acks)


async def _commit(world: World, *texts: bytes) -> JointCommitted:
    """Commit these entries in one step."""
    joint = _joint(world)
    return await joint.commit_jointly(_request(world, await joint.reserve_id(), *texts))


async def _plan(world: World, at: Position) -> JointAck | None:
    """Plan the acknowledgment of an entry in a new transaction."""
    branch = Branch(await _joint(world).reserve_id())
    return await _acks(world).plan_joint(AckRequest(branch, (Ack(at),), (await world.cursor.load()).incarnation))


async def _planned(world: World, at: Position) -> tuple[TxnID, JointAck]:
    """Plan the acknowledgment of an entry in a new transaction; it must be possible."""
    planned = await _plan(world, at)
    assert planned is not None
    return planned.move.branch.txn_id, planned


async def _acknowledge(world: World, txn: TxnID, at: Position) -> None:
    """Acknowledge an entry in a transaction of several steps."""
    await world.acks.add(AckRequest(Branch(txn), (Ack(at),), (await world.cursor.load()).incarnation))


async def _read(world: World) -> list[bytes | None]:
    """Return the values of all committed messages that this process can read now."""
    await world.buffer.max_read_position()
    page = await world.buffer.read(ReadRequest(EARLIEST, _ALL, Isolation.READ_COMMITTED))
    return [one.value for entry in page.entries for one in EntryView(entry.data, entry.position, SEGMENT).messages()]
