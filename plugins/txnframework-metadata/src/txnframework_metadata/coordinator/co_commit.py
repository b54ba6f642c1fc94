"""
Commits together with rows of the application: the decision is part of the application's database transaction.

One COMMIT makes the header, the rows, the messages and the acknowledgments take effect, or none of them. Crash windows:

* Before the COMMIT reaches the database, the database rolls back. The header stays OPEN, and the timeout aborts it.
* After the COMMIT, the header is COMMITTED, and any process settles it.
* If the reply is lost, ``end_with`` tries to abort the transaction over the store's own connection. The put has locked
  the header, so the abort waits for the end of the database transaction. Then exactly one of the two has taken effect:
  the COMMIT or the abort.
"""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Put
from txnframework.model.records import TransactionHeader
from txnframework.model.steps import Step
from txnframework.model.transactions import Action, End, State, Transaction
from txnframework_metadata.records.headers import (
    Header,
    end_transaction,
    final_put,
    read_header,
    require_owner,
    transaction_of,
)


def co_commit_store(store: IMetadataStore) -> ICoCommitStore:
    """
    Return the store as one that joins transactions of the application.

    :raises InvalidInput: the store cannot.
    """
    if not ICoCommitStore.providedBy(store):
        raise InvalidInput(
            "rows cannot be committed together with a transaction: the metadata store is not in a database of the"
            " application; use a store in PostgreSQL or SQLite"
        )
    return store


async def commit_with(
    store: IMetadataStore,
    environment: Environment,
    request: End,
    transaction: IDatabaseTransaction,
    begun: Header | None,
    attempts_max: int,
) -> Transaction:
    """Commit a transaction by the COMMIT of a database transaction; see ``IJointCoordinator.end_with``."""
    if request.action is not Action.COMMIT:
        raise InvalidInput("a transaction is only committed with a database transaction; an abort does not need one")
    txn_id = request.txn_id
    header = begun or await read_header(store, txn_id)
    document, put = _decide(header, request, environment.now_ms())
    try:
        await co_commit_store(store).apply(Step(puts=(put,)), transaction)
    except VersionMismatch:
        raise await _ended_before(store, txn_id) from None
    try:
        await transaction.commit()
    except OutcomeUnknown as unknown:
        # If the connection still works, this ends the database transaction, and the abort does not wait for its locks.
        await transaction.rollback()
        return await _resolve(store, environment, request, document, attempts_max, unknown)
    return transaction_of(txn_id, document)


def _decide(header: Header | None, request: End, now_ms: int) -> tuple[TransactionHeader, Put]:
    """Return the final header and its compare-and-set, or raise why the transaction cannot be committed; pure."""
    if header is None:
        raise TransactionNotFound(request.txn_id)
    if not request.operator:
        require_owner(header, request.principal)
    if not header.transaction.co_commit:
        raise TransactionConflict(request.txn_id, "it was not begun to be committed together with rows")
    if header.transaction.state is not State.OPEN:
        raise _otherwise(header)
    return final_put(header, request, now_ms)


def _otherwise(header: Header) -> InvalidTransactionState:
    found = header.transaction
    return InvalidTransactionState(found.txn_id, found.state, "it cannot be committed with these rows any more")


async def _ended_before(store: IMetadataStore, txn_id: TxnID) -> TxnFrameworkError:
    """Return the error for a header that changed before the put: nothing was committed."""
    header = await read_header(store, txn_id)
    if header is None:
        return TransactionNotFound(txn_id)
    if header.transaction.state is State.OPEN:
        return TransactionConflict(txn_id, "another process was about to end it; its rows were not committed")
    return _otherwise(header)


async def _resolve(
    store: IMetadataStore,
    environment: Environment,
    request: End,
    document: TransactionHeader,
    attempts_max: int,
    unknown: OutcomeUnknown,
) -> Transaction:
    """Find out by an attempt to abort whether the COMMIT was carried out whose reply was lost."""
    txn_id = request.txn_id
    abort = End(txn_id, Action.ABORT, request.principal, operator=request.operator)
    try:
        await end_transaction(store, environment, abort, attempts_max)
    except InvalidTransactionState:
        # It is COMMITTED, and only this COMMIT could do that: ``end`` refuses it for such a transaction.
        return transaction_of(txn_id, document)
    except (Unavailable, Closed, OutcomeUnknown, TransactionNotFound) as error:
        raise OutcomeUnknown(f"transaction {txn_id} may be committed, with its rows: {unknown}; {error}") from error
    raise InvalidTransactionState(
        txn_id, State.ABORTED, "the reply to its COMMIT was lost, and its rows were rolled back"
    ) from unknown
