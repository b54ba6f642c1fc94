"""
Transactions that begin and commit in one step of the database that has the headers, the ledgers and the cursors.

The step creates their headers as COMMITTED. So it does what otherwise begin, intents, appends, acknowledgments, commit
and settling do one after the other, with nothing between them that another process could see.

* An entry has branch 0 of its transaction, because readers, snapshots and copies know transactions by it. It needs no
  intent: an intent holds readers back while its transaction is open, and this one never is.
* An acknowledgment needs no record. Of two transactions that acknowledge one message, both put a record and then look
  for the other's. This step instead requires that no such record is stored at its moment. A process that puts a record
  checks the cursor in the same step, whatever its version, so no record is put beside the step. Another transaction
  that puts its record later looks afterwards, and finds the cursor moved.
* The cursor's version is part of the step, so an acknowledgment outside of transactions, a seek, or another step that
  moved the cursor refuses it.

Crash windows:

* Before the step nothing is stored, and after it everything is. An id that was reserved is unused.
* If the reply is lost, also that of the COMMIT of an application, the header of the first transaction shows the outcome
  of all. If there is no header, the step may still be under way. A header that says ABORTED is then put, with the
  expectation that there is none: the *fence*. Either the step finds the fence and is refused, or the fence finds the
  step's header. A fence must outlast every late step, also where the outcomes of transactions are kept for a short time
  only. So it says that the transaction ends ``FENCE_MS`` from now, and is collected after that.
* A process that was paused before it reads may find no header because the header of the step was collected since. A
  fence would then say that a committed transaction is aborted. So there is no fence once the outcome may be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    InvalidTransactionState,
    OutcomeUnknown,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.joint import JointCommit, JointCommitted, JointTransaction
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import header_key
from txnframework.model.records import FORMAT, TransactionHeader, encode
from txnframework.model.steps import Step
from txnframework.model.transactions import State
from txnframework_metadata.records.headers import header_indexes, read_header

FENCE_MS = 600_000
"""How much longer than other outcomes a fence is kept; far longer than a database works on a statement."""


async def commit_jointly(
    store: IMetadataStore,
    environment: Environment,
    request: JointCommit,
    attempts_max: int,
    retention_ms: int,
    transaction: IDatabaseTransaction | None = None,
) -> JointCommitted:
    """Make the step; see ``IJointCoordinator.commit_jointly``. ``retention_ms``: how long outcomes are kept."""
    now_ms, kept_until_ms = environment.now_ms(), environment.monotonic_ms() + retention_ms
    headers = [_header_put(one, State.COMMITTED, now_ms, now_ms) for one in request.transactions]
    puts = (*headers, *(ack.move.put for ack in request.acks))
    step = Step(puts=puts, appends=request.appends, vacant=tuple([one for ack in request.acks for one in ack.vacant]))
    try:
        if transaction is None:
            done = await store.apply(step)
        else:
            done = await ICoCommitStore(store).apply(step, transaction)
            await transaction.commit()
    except OutcomeUnknown as unknown:
        if transaction is not None:
            # If the connection still works, this ends the database transaction, and nothing waits for its locks.
            await transaction.rollback()
        # The step wrote all headers or none, so the first one decides for all.
        await _require_committed(store, environment, request.transactions, attempts_max, kept_until_ms, unknown)
        return JointCommitted(None, None)
    positions = tuple([tuple([one.position for one in some]) for some in done.appended])
    return JointCommitted(positions, done.records[len(headers) :])


def _header_put(transaction: JointTransaction, state: State, created_ms: int, finalized_ms: int) -> Put:
    """Return the write of a header that does not exist yet; pure."""
    document = TransactionHeader(
        format=FORMAT,
        state=state.value,
        timeout_ms=created_ms,
        created_ms=created_ms,
        finalized_ms=finalized_ms,
        principal=transaction.principal,
        branches=[0] if state is State.COMMITTED else None,
    )
    indexes = header_indexes(transaction.txn_id, document)
    return Put(header_key(transaction.txn_id), encode(document), Expect.ABSENT, indexes)


async def _require_committed(
    store: IMetadataStore,
    environment: Environment,
    transactions: Sequence[JointTransaction],
    attempts_max: int,
    kept_until_ms: int,
    unknown: OutcomeUnknown,
) -> None:
    """
    Return if the step was applied; otherwise prevent it from being applied later, and raise.

    ``transactions``: those of the step. ``kept_until_ms``: the monotonic time from which their headers may be
    collected.

    :raises InvalidTransactionState: the transaction is aborted.
    :raises OutcomeUnknown: the store cannot be asked, or the outcome may be forgotten.
    """
    txn_id = transactions[0].txn_id
    which = f"transaction {txn_id}"
    if len(transactions) > 1:
        which += f", and each other of the {len(transactions)} transactions of its step,"
    for _ in range(attempts_max):
        try:
            header = await read_header(store, txn_id)
            if header is None:
                if environment.monotonic_ms() >= kept_until_ms:
                    break
                now_ms = environment.now_ms()
                await store.put(_header_put(transactions[0], State.ABORTED, now_ms, now_ms + FENCE_MS))
                raise _fenced(txn_id) from unknown
        except (VersionMismatch, OutcomeUnknown):
            continue  # the step's header, or the fence of this call, may be there by now
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"{which} may be committed; it could not be read: {error}") from unknown
        if header.transaction.state is State.COMMITTED:
            return
        raise _fenced(txn_id) from unknown
    raise OutcomeUnknown(f"{which} may be committed") from unknown


def _fenced(txn_id: TxnID) -> InvalidTransactionState:
    return InvalidTransactionState(txn_id, State.ABORTED, "the reply to its only step was lost, and it was aborted")
