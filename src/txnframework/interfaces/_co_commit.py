"""ICoCommitStore, the transactions of an application's database that it joins, and the coordinator that ends them."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.interfaces._coordinator import ITransactionCoordinator
from txnframework.interfaces._metadata_store import IMetadataStore
from txnframework.model.steps import Applied, Step
from txnframework.model.transactions import End, Transaction


class IDatabaseTransaction(Interface):
    """
    A transaction in the application's own database connection, joined by ``ICoCommitStore.join``.

    How it is used: the application writes its rows. Then ``ICoCommitStore.apply`` makes one step, and ``commit``
    follows. On any failure before ``commit``, and after a failed ``commit``, ``rollback`` follows.

    The connection stays the application's. Calls of a driver that blocks are made by
    ``runtime.calling_thread.in_calling_thread``.
    """

    store_waits: str | None = Attribute(
        "Why every write of the store would wait for the end of this transaction, as a sentence that says in which"
        " order to write; None: it would not. Read before each send and acknowledgment, without I/O."
    )

    async def commit() -> None:
        """
        Commit the application's transaction; called once.

        :raises OutcomeUnknown: the reply was lost; the transaction may be committed. Raised also by whatever does not
            prove a rollback.
        :raises InvalidInput: the step was rolled back to a savepoint after it was made; nothing was committed.
        :raises Unavailable: the COMMIT was not sent; the transaction can only be rolled back.
        :raises Exception: an error of the driver that proves that the transaction was rolled back, as the driver raised
            it: a deferred constraint, a serialization failure.
        """

    async def rollback() -> None:
        """
        Roll the application's transaction back; may be repeated, also after ``commit``, and then changes nothing.

        It never raises for a lost connection: the database rolls back by itself. After the application has ended the
        joined transaction it does nothing.
        """


class ICoCommitStore(IMetadataStore):
    """
    A store whose steps can be part of a transaction in the application's own database connection.

    The store is inside a database, and the application has its own tables in the same database.
    """

    has_one_writer: bool = Attribute(
        "Whether every write of the store waits for a transaction of an application that has written a row."
    )

    async def apply(step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """
        Make a step; with a ``transaction`` that ``join`` has joined, as its last part before the COMMIT.

        The first put of such a step decides: it creates a record, or changes one that has a version. Nothing is visible
        before ``transaction.commit``, which the caller calls next. Until then another writer of that record waits for
        the end of the transaction, or makes its commit fail. So the record decides, also after a lost reply to the
        COMMIT. Other appends to the ledgers may wait, too; they are never between the entries of the step. If a part is
        refused, nothing of the step is written. The application's rows are kept, and its transaction is still open, if
        ``transaction.store_waits`` is None. Otherwise, and after any other error, it can only be rolled back.

        An error of the driver is raised as the driver raised it.

        :raises InvalidInput: the application ended the joined transaction, or a savepoint is open. Or the transaction
            was rolled back to a savepoint that is older than the join. Or its snapshot is older than the record that
            decides, or the step has more than records and reads one snapshot. Or ``join`` could not find out what it
            refuses. Nothing was written.
        :raises Unavailable: the connection is lost, and the transaction with it.
        :raises ValueError: ``model.steps.require_decided`` refuses the step with a ``transaction``.

        Other errors are those of ``IMetadataStore.apply``.
        """

    async def join(connection: object) -> IDatabaseTransaction:
        """
        Join the open transaction of the application's connection for one ``apply``; begin one if none is open.

        Nothing is locked, and nothing is written. The server and the database are compared with those of the store,
        here or by ``apply``: a restored copy may contain the same records.

        After a failure or a cancellation, a transaction that this call began is rolled back. One that was open before
        stays open.

        :param connection: a connection or session of a kind that the store knows.
        :raises InvalidInput: the connection is of an unknown kind, or reaches another database. It may not write, or
            commits each statement by itself. A savepoint is open. The message says which in one sentence.
        :raises Unavailable: the connection is lost.
        """


class ICoCommitCoordinator(ITransactionCoordinator):
    """
    A coordinator that can commit a transaction together with rows of the application.

    How it is used:

    1. ``begin`` with ``Begin.co_commit``. Such a transaction can only be committed by ``end_with``: ``end`` refuses to
       commit it while it is open, because its rows would be missing. ``end`` may abort it, by any process.
    2. ``join`` with the connection.
    3. Messages, acknowledgments and rows are written.
    4. ``end_with`` once. Or roll the database transaction back, then ``end`` with ABORT: the other order could wait for
       the lock of the own put.
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

        It is for one ``end_with`` or ``IJointCoordinator.commit_jointly``. A transaction that ``end_with`` commits is
        begun before: a database transaction may read one snapshot, which must have its header.

        :raises InvalidInput: the store cannot join this connection; see ``ICoCommitStore.join``.
        :raises Unavailable: the connection is unavailable; nothing was changed.
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
