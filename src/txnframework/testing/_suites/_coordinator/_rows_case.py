"""Transactions of an application without a database: a step that is made by the COMMIT, unless that is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from zope.interface import alsoProvides, implementer

from txnframework.errors import LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, IJointCoordinator, IMetadataStore
from txnframework.model.ledger import Appended
from txnframework.model.positions import Position
from txnframework.model.steps import Applied, Step
from txnframework.plugin import CoordinatorContext
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing.harness import Harness
from txnframework.testing.world import World, WorldHarness

Fate = Literal["committed", "reply lost", "request lost", "refused", "not sent"]
UNSEEN = Position(1 << 40, 0)
"""The position of each entry that is left to a COMMIT."""


class Refused(Exception):
    """The error of a driver whose database refuses a COMMIT."""


@implementer(IDatabaseTransaction)
class SuiteRows:
    """
    A database transaction whose COMMIT makes the step that was given to it, and ends as ``fate`` says.

    ``steps``: what it was asked.

    :param cut: a process that cannot reach its stores after the COMMIT.
    """

    store_waits: str | None = None

    def __init__(self, fate: Fate = "committed", cut: World | None = None) -> None:
        self.steps: list[str] = []
        self._fate = fate
        self._cut = cut
        self._step: tuple[IMetadataStore, Step] | None = None

    def keep(self, store: IMetadataStore, step: Step) -> None:
        """Keep the step for the COMMIT."""
        self.steps.append("step")
        self._step = (store, step)

    async def commit(self) -> None:
        """Make the step, unless the COMMIT is lost or refused."""
        self.steps.append("commit")
        if self._fate == "not sent":
            raise Unavailable("the COMMIT was not sent")
        if self._fate == "refused":
            raise Refused
        if self._fate != "request lost":
            await self.arrive()
        if self._cut is not None:
            self._cut.connection.is_cut = True
        if self._fate != "committed":
            raise OutcomeUnknown("the reply was lost")

    async def arrive(self) -> None:
        """Let the COMMIT arrive at the database."""
        assert self._step is not None, "a COMMIT without a step"
        store, step = self._step
        await store.apply(step)

    async def rollback(self) -> None:
        """Note the rollback."""
        self.steps.append("rollback")


class StepsOfRows(ForwardingProxy):
    """A metadata store that leaves steps with rows to their COMMIT."""

    def __init__(self, behind: IMetadataStore, refuses: bool = False) -> None:
        super().__init__(behind)
        self._refuses = refuses
        alsoProvides(self, ICoCommitStore)

    async def apply(self, step: Step, transaction: SuiteRows | None = None) -> Applied:
        """Give the step to the transaction."""
        if transaction is None:
            applied: Applied = await self._behind.apply(step)
            return applied
        if self._refuses:
            transaction.steps.append("step")
            raise LedgerSealed("by the test")
        transaction.keep(self._behind, step)
        return Applied((), tuple((Appended(UNSEEN),) * len(one.entries) for one in step.appends))


@asynccontextmanager
async def coordinator_over(
    data: Harness[World], world: World, store: ForwardingProxy
) -> AsyncIterator[IJointCoordinator]:
    """Open another coordinator over the ledgers of a process and another metadata store."""
    assert isinstance(data, WorldHarness)
    coordinator = await data.coordinator.open(
        CoordinatorContext(
            IMetadataStore(store), world.ledgers, world.participants, data.environment, transactions=data.transactions
        )
    )
    try:
        yield IJointCoordinator(coordinator)
    finally:
        await coordinator.close()
