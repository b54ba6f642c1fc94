"""Settling of transactions that have committed: those that wait at the same time share a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import KeyRange, Record
from txnframework.model.paths import operations_range, txn_id_of
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules
from txnframework_metadata.coordinator.settling_step import OwnOutcome, SettlingStep
from txnframework_metadata.records.operations import STEPS_TOGETHER_MAX
from txnframework_metadata.records.shared_operations import SharedOperations


@dataclass(eq=False, slots=True)
class _Waiting:
    outcome: OwnOutcome
    is_settled: bool = False


class SettlingGroup:
    """
    Settles committed transactions by what this process wrote in them.

    Their headers are COMMITTED and durable, so a crash before, during or after the step leaves operations that any
    process settles. Whatever the step leaves out, or a refused step, is left to the settling that reads.
    """

    def __init__(self, store: IMetadataStore, shared: SharedOperations, page_records: int) -> None:
        self._store = store
        self._shared = shared
        self._page_records = page_records
        self._groups: CallGroups[_Waiting] = CallGroups(
            self._perform,
            GroupRules(
                joins=lambda *_: True,
                size=lambda one: len(one.outcome.written.operations),
                size_max=STEPS_TOGETHER_MAX,
                what="the settling of a transaction",
            ),
        )

    async def settle(self, outcome: OwnOutcome) -> bool:
        """
        Settle what can be settled in one step; return whether nothing of the transaction is left, of any process.

        If something is left, or that is not known, the settling that reads follows, and reports what fails.

        :raises Closed: this was closed.
        """
        waiting = _Waiting(outcome)
        await self._groups.add(waiting)
        return waiting.is_settled

    async def close(self) -> None:
        """Stop; what was not settled is found by any process."""
        await self._groups.close()

    async def _perform(self, waiting: Sequence[_Waiting]) -> Answers:
        try:
            if await self._settled([one.outcome for one in waiting]):
                left = await self._left_between([one.outcome for one in waiting])
                for one in waiting:
                    one.is_settled = left is not None and one.outcome.txn_id not in left
        except TxnFrameworkError:
            pass  # the settling that reads finds what is left, and reports what fails
        return [None] * len(waiting)

    async def _settled(self, committed: Sequence[OwnOutcome]) -> bool:
        """Settle in one step; return whether there was one."""
        settling = SettlingStep(self._shared)
        records: Sequence[Record] | None = None
        try:
            await settling.plan(committed)
            step = settling.step()
            if step is not None:
                records = (await self._store.apply(step)).records
        finally:
            await settling.finish(records)
        return records is not None

    async def _left_between(self, committed: Sequence[OwnOutcome]) -> set[TxnID] | None:
        """
        Return the transactions from the first to the last of these that have operations; None: too many.

        The transactions have ended, so nothing is added to them any more.
        """
        ids = [one.txn_id for one in committed]
        between = KeyRange(operations_range(min(ids)).start, operations_range(max(ids)).stop)
        page = await self._store.scan(between, self._page_records)
        return None if page.resume is not None else {txn_id_of(record.key.path) for record in page.records}
