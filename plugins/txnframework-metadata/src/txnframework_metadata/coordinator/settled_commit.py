"""
Commits that settle the transaction in the same step of the store.

A small transaction usually has one write operation and one acknowledgment record, both written by the process that
commits. Where a step may be of several partitions, one then sets the header to COMMITTED, moves the cursor, and removes
the two records. So no process sees anything that it could not see before: either the open transaction with its records,
or one that was settled at once.

* The header's version is one more condition. If any is not met, the commit is the usual compare-and-set, and the
  settling follows it.
* What ``settling_step`` leaves out is found by the settling that follows every commit.
* A commit by an operator sets the header only.
* A lost reply is resolved as for any other commit, by the header: it is COMMITTED if and only if the batch was applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnframework.environment import Environment
from txnframework.errors import VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Record
from txnframework.model.transactions import Action, End, Transaction
from txnframework_metadata.coordinator.settling_step import OwnOutcome, SettlingStep
from txnframework_metadata.records.headers import Header, final_put, transaction_of
from txnframework_metadata.records.own_operations import Written
from txnframework_metadata.records.shared_operations import SharedOperations


async def commit_settled(
    store: IMetadataStore,
    environment: Environment,
    request: End,
    header: Header,
    written: Written,
    shared: SharedOperations,
) -> Transaction | None:
    """
    Commit and settle in one step; return None if nothing was written, because a condition was not met.

    :param header: the header as this process wrote it. :param written: the operations as it wrote them.
    :raises OutcomeUnknown: all or nothing was written; the header shows which.
    """
    begun = header.transaction
    if request.action is not Action.COMMIT or request.operator or begun.co_commit:
        return None
    if begun.principal != request.principal:
        return None
    settling = SettlingStep(shared)
    records: Sequence[Record] | None = None
    try:
        await settling.plan([OwnOutcome(request.txn_id, request.branches, written)])
        document, put = final_put(header, request, environment.now_ms())
        step = settling.step(put)
        if step is None:
            return None
        try:
            records = (await store.apply(step)).records
        except VersionMismatch:
            return None
    finally:
        await settling.finish(records)
    return transaction_of(request.txn_id, document)
