"""IJointCoordinator: transactions that one step of a store decides."""

from __future__ import annotations

from zope.interface import Attribute

from txnframework.interfaces._co_commit import IDatabaseTransaction
from txnframework.interfaces._coordinator import ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.joint import JointCommit, JointCommitted
from txnframework.model.transactions import End, Transaction


class IJointCoordinator(ITransactionCoordinator):
    """
    A coordinator whose transactions can be decided by one step of the store, also together with rows of an application.

    A transaction in one step, if ``has_one_database``, whose operations are all known in advance:

    1. ``reserve_id``, because its entries contain its id,
    2. ``IPendingAckStore.plan_joint`` for each subscription on a segment, in the order of their names,
    3. ``commit_jointly``, perhaps in a database transaction that was joined before,
    4. ``finish_joint`` for each plan, whatever came of the step.

    A transaction that commits with rows, if the metadata store is an ICoCommitStore:

    1. ``begin`` with ``Begin.co_commit``. Such a transaction can only be committed by ``end_with``: ``end`` refuses to
       commit it while it is open, because its rows would be missing. ``end`` may abort it, by any process.
    2. ``join`` with the connection.
    3. Messages, acknowledgments and rows are written.
    4. ``end_with`` once. Or roll the database transaction back, then ``end`` with ABORT: the other order could wait for
       the lock of the own step.
    """

    has_one_database: bool = Attribute(
        "Whether steps of the metadata store append to the ledgers of the ledger store. Otherwise no transaction is one"
        " step, and ``commit_jointly`` is not called."
    )

    async def reserve_id() -> TxnID:
        """
        Return an id for ``commit_jointly``; it never repeats, and may stay unused.

        :raises Unavailable: no id could be reserved.
        """

    async def prepare() -> None:
        """
        Reserve what ``reserve_id`` needs, if that would wait for rows that the application has written by then.

        Called before the application may write rows, and after each ``commit_jointly`` with rows. It costs little if
        nothing has to be done.

        :raises Unavailable: nothing was reserved; trying again may help.
        """

    async def join(connection: object) -> IDatabaseTransaction:
        """
        Join the database transaction of the application's connection; begin one if none is open.

        It is for one ``end_with`` or ``commit_jointly``. A transaction that ``end_with`` commits is begun before: a
        database transaction may read one snapshot, which must have its header.

        :raises InvalidInput: the store cannot join this connection; see ``ICoCommitStore.join``.
        :raises Unavailable: the connection is unavailable; nothing was changed.
        """

    async def commit_jointly(request: JointCommit, transaction: IDatabaseTransaction | None = None) -> JointCommitted:
        """
        Write committed transactions with their entries and the moves of cursors, all or nothing, and durably.

        Several transactions may share a step. The entries go to ledgers of the coordinator's ledger store, past the
        buffers of their segments, which must be IPlannableBuffers of its family.

        No process ever sees one of the transactions open, and nothing of them is left to be settled. For ``describe``,
        readers, snapshots and copies each is a committed transaction like any other one, without participants. A cursor
        moves only if it is still as it was planned, and if the subscription has no acknowledgment of another
        transaction that is open or not settled.

        With a ``transaction``, which ``join`` has joined, the request has one transaction, and rows of the application
        are a part of the step: one COMMIT decides all. It is sent once. After any error call ``transaction.rollback``:
        the rows may be gone already, so nothing else may take effect on the connection without them. An error of the
        driver that proves a rollback, as that of a deferred constraint, is raised as the driver raised it. If the reply
        of the COMMIT is lost, the coordinator rolls back before it looks for the outcome, so that nothing waits for the
        locks of a connection that still works.

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

    async def end_with(request: End, transaction: IDatabaseTransaction) -> Transaction:
        """
        Commit the transaction and the database transaction by one COMMIT; return the transaction as it ended.

        ``request`` commits. If the reply of the COMMIT is lost, the coordinator aborts the transaction by the store's
        own connection. That succeeds only if the database transaction was rolled back. So messages, acknowledgments and
        rows always have the same outcome. The COMMIT is sent at most once; after an error call ``rollback``, and do not
        call this again. After a cancelled call, the outcome is that of the header.

        An error of the driver is raised as the driver raised it; the transaction is then still open, unless
        ``describe`` says otherwise.

        :raises InvalidTransactionState: the transaction ended otherwise, and the rows were not committed. Also after a
            lost reply, if the COMMIT was not carried out: the transaction is now aborted.
        :raises TransactionConflict: the transaction was begun without ``co_commit``; nothing was changed.
        :raises TransactionNotFound: the transaction never began, or was forgotten; the rows were not committed.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was changed.
        :raises InvalidInput: the connection cannot carry the commit; see ``ICoCommitStore.apply``; nothing was changed.
        :raises Unavailable: the header could not be read or put; nothing was committed.
        :raises OutcomeUnknown: the reply of the COMMIT was lost, and the store cannot be reached. ``end`` with ABORT
            resolves this later.
        """
