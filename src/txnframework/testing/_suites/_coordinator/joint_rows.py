"""Rules of IJointCoordinator: a step that is the last part of a transaction of the application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txnframework.errors import (
    InvalidTransactionState,
    LedgerSealed,
    OutcomeUnknown,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import (
    IJointCoordinator,
)
from txnframework.model import State
from txnframework.model.joint import JointCommitted
from txnframework.testing._suites._coordinator._case import state_in
from txnframework.testing._suites._coordinator._joint_case import (
    OneStepRules,
    commit_texts,
    planned_ack,
    read_texts,
    request_of,
    txn_of,
)
from txnframework.testing._suites._coordinator._rows_case import (
    UNSEEN,
    Fate,
    Refused,
    StepsOfRows,
    SuiteRows,
    coordinator_over,
)
from txnframework.testing.world import World


class JointRowCommitRules(OneStepRules):
    """A transaction in one step with rows is decided by the COMMIT of the rows, and by nothing else."""

    async def test_a_step_with_rows(self) -> None:
        """The step is made in the database transaction, and one COMMIT follows; nothing is written before it."""
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            txn, rows = await joint.reserve_id(), SuiteRows()
            written = world.connection.writes
            done = await joint.commit_jointly(request_of(world, txn, b"x", principal="ada"), rows)
            assert rows.steps == ["step", "commit"]
            assert world.connection.writes == written + 1
            assert done.positions == ((UNSEEN,),)
            found = await other.coordinator.describe(txn)
            assert (found.state, found.principal) == (State.COMMITTED, "ada")
            assert await read_texts(other) == [b"x"]

    async def test_acknowledgments_with_rows(self) -> None:
        """Acknowledgments take effect by the COMMIT; if it is lost and aborted, they can be made again."""
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            done = await commit_texts(other, b"a")
            assert done.positions is not None
            at = done.positions[0][0]
            for fate in ("request lost", "reply lost"):
                txn, planned = await planned_ack(world, at)
                request = request_of(world, txn, b"for a", acks=(planned,))
                try:
                    await joint.commit_jointly(request, SuiteRows(fate))
                except InvalidTransactionState:
                    assert fate == "request lost"
                finally:
                    await world.acks.finish_joint(planned, None)
                assert await state_in(other, txn_of(planned)) is (
                    State.ABORTED if fate == "request lost" else State.COMMITTED
                )
            assert await read_texts(other) == [b"a", b"for a"]

    async def test_a_step_with_rows_that_is_refused(self) -> None:
        """The refusal is raised, no COMMIT is sent, and the id stays unknown."""
        async with self.data.open() as world, self.data.open() as other:
            async with self._of_rows(world, refuses=True) as joint:
                txn, rows = await joint.reserve_id(), SuiteRows()
                with pytest.raises(LedgerSealed):
                    await joint.commit_jointly(request_of(world, txn, b"x"), rows)
                assert "commit" not in rows.steps
            await self.nothing_of(other, txn)
            with pytest.raises(TransactionNotFound):
                await other.coordinator.describe(txn)

    async def test_a_lost_commit_with_rows(self) -> None:
        """The outcome is found out; the COMMIT is sent once, and the connection is rolled back before."""
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            txn, rows = await joint.reserve_id(), SuiteRows("reply lost")
            assert await joint.commit_jointly(request_of(world, txn, b"x"), rows) == JointCommitted(None, None)
            assert rows.steps == ["step", "commit", "rollback"]
            assert await state_in(other, txn) is State.COMMITTED
            txn, rows = await joint.reserve_id(), SuiteRows("request lost")
            with pytest.raises(InvalidTransactionState) as caught:
                await joint.commit_jointly(request_of(world, txn, b"y"), rows)
            assert rows.steps == ["step", "commit", "rollback"]
            assert caught.value.actual is await state_in(other, txn) is State.ABORTED
            assert await read_texts(other) == [b"x"]

    async def test_a_late_commit_with_rows(self) -> None:
        """A COMMIT that was given up is refused when it comes late."""
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            txn, rows = await joint.reserve_id(), SuiteRows("request lost")
            with pytest.raises(InvalidTransactionState):
                await joint.commit_jointly(request_of(world, txn, b"late"), rows)
            with pytest.raises(VersionMismatch):
                await rows.arrive()
            assert await state_in(other, txn) is State.ABORTED
            assert await read_texts(other) == []

    async def test_a_commit_with_rows_and_no_store(self) -> None:
        """If the header cannot be read after a lost reply, the outcome is unknown; the header has it."""
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            txn = await joint.reserve_id()
            with pytest.raises(OutcomeUnknown):
                await joint.commit_jointly(request_of(world, txn, b"x"), SuiteRows("reply lost", world))
            world.connection.restore()
            assert await state_in(other, txn) is State.COMMITTED
            assert await read_texts(other) == [b"x"]

    async def test_a_commit_with_rows_that_fails(self) -> None:
        """The driver's own error is raised, and Unavailable if no COMMIT was sent; then nothing counts."""
        fates: tuple[tuple[Fate, type[Exception]], ...] = (("refused", Refused), ("not sent", Unavailable))
        async with self.data.open() as world, self.data.open() as other, self._of_rows(world) as joint:
            for fate, error in fates:
                txn, rows = await joint.reserve_id(), SuiteRows(fate)
                with pytest.raises(error):
                    await joint.commit_jointly(request_of(world, txn, b"x"), rows)
                assert rows.steps.count("commit") == 1
                await self.nothing_of(other, txn)
                with pytest.raises(TransactionNotFound):
                    await other.coordinator.describe(txn)

    @asynccontextmanager
    async def _of_rows(self, world: World, *, refuses: bool = False) -> AsyncIterator[IJointCoordinator]:
        """Open another coordinator, whose steps with rows are left to their COMMIT."""
        async with coordinator_over(self.data, world, StepsOfRows(world.store, refuses)) as joint:
            yield joint
