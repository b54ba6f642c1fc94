"""Commit and abort of a transaction in which tasks have staged rows, for streams and batch jobs."""

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
    """Commit all staged rows by one compare-and-set of the header, which lists the branches of the tasks.

    :raises BatchNotCommitted: the transaction has ended; none of the rows counts.
    """
    branches = frozenset({0}) | {message.branch for message in staged}
    try:
        await coordinator.end(End(txn_id, Action.COMMIT, branches=branches))
    except (InvalidTransactionState, TransactionNotFound) as error:
        raise BatchNotCommitted(f"{what} was not committed: {error}") from error


async def is_committed(coordinator: ITransactionCoordinator, txn_id: TxnID, staged: Iterable[Staged]) -> bool:
    """Return whether the transaction is committed with the staged branches; only its decider commits it so."""
    try:
        found = await coordinator.describe(txn_id)
    except TransactionNotFound:
        return False
    return found.state is State.COMMITTED and all(found.counts(message.branch) for message in staged)


async def settle(coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
    """Settle the transaction at once; if that fails, the next reader settles it."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await coordinator.settle(txn_id)


async def abort_open(coordinator: ITransactionCoordinator, txn_ids: Iterable[TxnID]) -> None:
    """Abort those transactions that are open; committed ones are unaffected."""
    for txn_id in sorted(set(txn_ids)):
        # Unavailable: the next batch, run or job aborts it, at the latest its timeout.
        with contextlib.suppress(InvalidTransactionState, TransactionNotFound, Unavailable, OutcomeUnknown):
            await coordinator.end(End(txn_id, Action.ABORT))
            await coordinator.settle(txn_id)
