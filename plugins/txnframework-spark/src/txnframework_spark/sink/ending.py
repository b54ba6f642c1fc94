"""The two ends of a transaction that tasks have staged rows in, as streams and batch jobs need them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from txnframework.errors import InvalidTransactionState, OutcomeUnknown, TransactionNotFound, Unavailable
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.transactions import Action, End, State
from txnframework_spark.errors import BatchNotCommitted
from txnframework_spark.sink.staged import Staged


async def commit_branches(
    coordinator: ITransactionCoordinator, txn_id: TxnID, staged: Iterable[Staged], what: str
) -> None:
    """Make what was staged visible, all of it, by the one compare-and-set of the header; BatchNotCommitted: none of it.

    However many tasks there were: what they wrote stands under their branches, and this lists them.
    """
    branches = frozenset({0}) | {message.branch for message in staged}
    try:
        await coordinator.end(End(txn_id, Action.COMMIT, branches=branches))
    except (InvalidTransactionState, TransactionNotFound) as error:
        raise BatchNotCommitted(f"{what} was not committed: {error}") from error


async def is_committed(coordinator: ITransactionCoordinator, txn_id: TxnID, staged: Iterable[Staged]) -> bool:
    """Return whether the transaction is committed with what was staged, which nobody does but who decides about it."""
    try:
        found = await coordinator.describe(txn_id)
    except TransactionNotFound:
        return False
    return found.state is State.COMMITTED and all(found.counts(message.branch) for message in staged)


async def settle(coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
    """Make the outcome take effect at once; where it fails, whoever reads next does it."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await coordinator.settle(txn_id)


async def abort_open(coordinator: ITransactionCoordinator, txn_ids: Iterable[TxnID]) -> None:
    """End those that are still open; what is committed stays so."""
    for txn_id in sorted(set(txn_ids)):
        # Unavailable: the next batch, run or job aborts it, at the latest its timeout does.
        with contextlib.suppress(InvalidTransactionState, TransactionNotFound, Unavailable, OutcomeUnknown):
            await coordinator.end(End(txn_id, Action.ABORT))
            await coordinator.settle(txn_id)
