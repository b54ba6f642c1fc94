"""The roles of transactions that are one step of a database: IJointCoordinator, IJointBuffer, IJointPendingAcks."""

from __future__ import annotations

from txnframework.interfaces._buffer import IInPlaceBuffer
from txnframework.interfaces._co_commit import IDatabaseTransaction
from txnframework.interfaces._coordinator import ITransactionCoordinator
from txnframework.interfaces._pending_ack import IPendingAckStore
from txnframework.model.acks import AckRequest
from txnframework.model.ids import TxnID
from txnframework.model.joint import JointAck, JointCommit, JointCommitted
from txnframework.model.metadata import Record
from txnframework.model.positions import Position


class IJointCoordinator(ITransactionCoordinator):
    """
    A coordinator whose transactions may begin and commit in one step, with their entries and acknowledgments.

    Several transactions may share a step. It serves transactions whose operations are all known in advance. The entries
    go to ledgers of the coordinator's ledger store, past the buffers of their segments, which must be IJointBuffers.
    The acknowledgments are planned by IJointPendingAcks.

    How it is used: 1. ``reserve_id`` for each, because its entries contain its id, 2. ``plan_joint`` for each
    subscription on a segment, in the order of their names, 3. ``commit_jointly``, 4. ``finish_joint`` for each plan,
    whatever came of the step.
    """

    async def reserve_id() -> TxnID:
        """
        Return an id for ``commit_jointly``; it never repeats, and may stay unused.

        :raises Unavailable: no id could be reserved.
        """

    async def commit_jointly(request: JointCommit, transaction: IDatabaseTransaction | None = None) -> JointCommitted:
        """
        Write committed transactions with their entries and the moves of cursors, all or nothing, and durably.

        No process ever sees one of them open, and nothing of them is left to be settled. For ``describe``, readers,
        snapshots and copies each is a committed transaction like any other one, without participants. A cursor moves
        only if it is still as it was planned, and if the subscription has no acknowledgment of another transaction that
        is open or not settled.

        With a ``transaction``, which ``ICoCommitCoordinator.join`` has joined, the request has one
        transaction, and rows of the application are a part of the step: one COMMIT decides all. It is sent once. After
        any error call ``transaction.rollback``: the rows may be gone already, so nothing else may take effect on the
        connection without them. An error of the driver that proves a rollback, as that of a deferred constraint, is
        raised as the driver raised it. If the reply of the COMMIT is lost, the coordinator rolls back before it looks
        for the outcome, so that nothing waits for the locks of a connection that still works.

        Errors of the first kind: nothing was written, and nothing will be. The caller may request fewer of the
        transactions, or perform the operations one by one instead, in other transactions. With a ``transaction``, the
        caller does the work again, with its rows.

        :raises LedgerSealed: a segment accepts no more entries.
        :raises LedgerNotFound: a segment was deleted.
        :raises VersionMismatch: a cursor has moved, or the subscription has acknowledgments of another transaction.
        :raises InvalidInput: the store cannot write this much in one step.
        :raises Unavailable: the step was not made.
        :raises InvalidTransactionState: the reply of the step was lost, and its first transaction was aborted since.
            The header that says so is kept, so that a late step is refused.

        Error of the second kind:

        :raises OutcomeUnknown: everything was written, or nothing; the header could not be read, or may have been
            collected since. Or the call was cancelled.
        """


class IJointBuffer(IInPlaceBuffer):
    """
    A buffer to whose ledger an IJointCoordinator of its family may append entries, past the buffer.

    The buffer reads such an entry by the rules for committed transactions without operations.
    """

    async def tail_seen() -> Position:
        """
        Return a position of the ledger's end that was seen before, without I/O.

        Entries of a later step are behind it.
        """

    async def appended_jointly(last: Position) -> None:
        """Note that a step has appended entries up to ``last``; readers that wait in ``advanced`` wake."""


class IJointPendingAcks(IPendingAckStore):
    """A store whose acknowledgments may take effect in the step that commits their transaction."""

    async def plan_joint(requests: tuple[AckRequest, ...]) -> JointAck | None:
        """
        Return individual acknowledgments, each of another branch, as a part of a step; nothing is written.

        None: plan fewer of them, or call ``add`` for each instead. This is so if a message is acknowledged already, or
        by two of them, which ``add`` reports. Plans for one subscription on a segment
        follow one another: this waits until the plan before it is finished. A caller that makes several plans makes
        them in the order of (segment, subscription), so that two callers never wait for each other.
        """

    async def finish_joint(planned: JointAck, written: Record | None) -> None:
        """
        End a plan. ``written``: the cursor's record; None if the step wrote nothing, or it is not known what.

        To be called once for each plan, also after a failure. With a record, the transactions are committed, and the
        messages are finished.
        """
