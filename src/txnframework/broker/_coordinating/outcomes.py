"""Whether branches of transactions counted, as far as this process has heard."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import TransactionNotFound
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import Branch
from txnframework.model.transactions import State


class KnownOutcomes:
    """A bounded memory of outcomes, which never change; the oldest are forgotten first and can be asked for again."""

    def __init__(self, branches_max: int) -> None:
        self._branches_max = branches_max
        self._counts: OrderedDict[Branch, bool] = OrderedDict()

    def note(self, branch: Branch, *, counts: bool) -> None:
        """The branch's transaction has ended: what it wrote and acknowledged counts, or does not."""
        self._counts[branch] = counts
        self._counts.move_to_end(branch)
        if len(self._counts) > self._branches_max:
            self._counts.popitem(last=False)

    def counts(self, branch: Branch) -> bool | None:
        """Return whether a branch counts; None: nothing was heard of it here, or its transaction is open."""
        return self._counts.get(branch)

    async def ask(self, coordinator: ITransactionCoordinator, branch: Branch) -> None:
        """
        Ask for the outcome of a transaction of which nothing was heard, and note it if it has ended.

        One that was forgotten cannot be told from one that was aborted: nobody may rely on it.
        """
        try:
            found = await coordinator.describe(branch.txn_id)
        except TransactionNotFound:
            self.note(branch, counts=False)
            return
        if found.state in (State.COMMITTED, State.ABORTED):
            self.note(branch, counts=found.counts(branch.number))
