"""Shared parts of the rules of transactions that are one step of a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from txnframework.errors import (
    OutcomeUnknown,
)
from txnframework.interfaces import (
    IDatabaseTransaction,
    IJointCoordinator,
    IMetadataStore,
)
from txnframework.model import Ack, AckRequest, Append, Branch, Position, TxnID
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.joint import JointAck, JointCommit, JointCommitted, JointTransaction
from txnframework.model.metadata import Record
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.reads import Isolation, ReadRequest
from txnframework.model.steps import Applied, LedgerAppend, Step
from txnframework.model.transactions import OpenQuery
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing._suites._processes import ProcessRules
from txnframework.testing.world import SEGMENT, World, WorldHarness

ALL = Limit(100)


class LateSteps(ForwardingProxy):
    """A metadata store whose steps with entries are lost at once, and applied later, if at all."""

    def __init__(self, behind: IMetadataStore) -> None:
        super().__init__(behind)
        self.late: list[Step] = []

    async def apply(self, step: Step, *transaction: IDatabaseTransaction) -> Applied:
        """Lose the step on its way."""
        if not step.appends:
            applied: Applied = await self._behind.apply(step, *transaction)
            return applied
        self.late.append(step)
        raise OutcomeUnknown("the step is on its way")


class SlowReplies(ForwardingProxy):
    """A metadata store whose steps with entries are applied, and whose replies are lost after ``meanwhile``."""

    def __init__(self, behind: IMetadataStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(behind)
        self._meanwhile = meanwhile

    async def apply(self, step: Step, *transaction: IDatabaseTransaction) -> Applied:
        """Apply the step, and lose the reply."""
        applied: Applied = await self._behind.apply(step, *transaction)
        if step.appends:
            await self._meanwhile()
            raise OutcomeUnknown("the reply is lost")
        return applied


class OneStepRules(ProcessRules):
    """Base class of the rules, whose harness opens stores in one database."""

    data: WorldHarness

    async def nothing_of(self, world: World, txn: TxnID) -> None:
        """Check that nothing of a transaction is stored."""
        page = await world.buffer.read(ReadRequest(EARLIEST, ALL, Isolation.READ_UNCOMMITTED))
        assert all(one.branch is None or one.branch.txn_id != txn for one in page.entries)
        assert all(one.txn_id != txn for one in await world.coordinator.list_open(OpenQuery()))


def joint_of(world: World) -> IJointCoordinator:
    """Return the coordinator of a process."""
    return IJointCoordinator(world.coordinator)


def only_cursor(cursors: tuple[Record, ...] | None) -> Record:
    """Return the one record that a step wrote."""
    assert cursors is not None, "the reply was not lost"
    (cursor,) = cursors
    return cursor


def request_of(
    world: World, txn: TxnID, *texts: bytes, acks: tuple[JointAck, ...] = (), principal: str = ""
) -> JointCommit:
    """Return a transaction with one entry for each text."""
    entries = tuple(
        Append(encode_entry([EntryMessage(None, text, (), number, 0)], "suite", Branch(txn)), 1, Branch(txn))
        for number, text in enumerate(texts)
    )
    appends = (LedgerAppend(world.ledger.reference, entries),) if entries else ()
    return JointCommit((JointTransaction(txn, principal),), appends, acks)


def several(world: World, txns: Sequence[TxnID], *acks: JointAck) -> JointCommit:
    """Return transactions that share a step, each with an entry that has its place."""
    requests = [request_of(world, txn, b"%d" % place) for place, txn in enumerate(txns)]
    (ledger,) = {one.appends[0].ledger for one in requests}
    entries = tuple([entry for one in requests for entry in one.appends[0].entries])
    transactions = tuple([one.transactions[0] for one in requests])
    return JointCommit(transactions, (LedgerAppend(ledger, entries),), acks)


async def commit_texts(world: World, *texts: bytes) -> JointCommitted:
    """Commit these entries in one step."""
    joint = joint_of(world)
    return await joint.commit_jointly(request_of(world, await joint.reserve_id(), *texts))


async def plan_ack(world: World, at: Position) -> JointAck | None:
    """Plan the acknowledgment of an entry in a new transaction."""
    branch = Branch(await joint_of(world).reserve_id())
    request = AckRequest(branch, (Ack(at),), (await world.cursor.load()).incarnation)
    return await world.acks.plan_joint((request,))


async def planned_ack(world: World, at: Position) -> tuple[TxnID, JointAck]:
    """Plan the acknowledgment of an entry in a new transaction; it must be possible."""
    planned = await plan_ack(world, at)
    assert planned is not None
    return txn_of(planned), planned


def txn_of(planned: JointAck) -> TxnID:
    """Return the transaction of a plan, which has one."""
    ((branch, _),) = planned.move.parts
    return branch.txn_id


async def acknowledge_in_steps(world: World, txn: TxnID, at: Position) -> None:
    """Acknowledge an entry in a transaction of several steps."""
    await world.acks.add(AckRequest(Branch(txn), (Ack(at),), (await world.cursor.load()).incarnation))


async def read_texts(world: World) -> list[bytes | None]:
    """Return the values of all committed messages that this process can read now."""
    await world.buffer.max_read_position()
    page = await world.buffer.read(ReadRequest(EARLIEST, ALL, Isolation.READ_COMMITTED))
    return [one.value for entry in page.entries for one in EntryView(entry.data, entry.position, SEGMENT).messages()]
