"""ICoCommitStore, and the transactions of an application's database that it joins."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.interfaces._metadata_store import IMetadataStore
from txnframework.model.steps import Applied, Step


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
        " order to write; None: it would not. Read before each send and acknowledgment, so it takes no call of the"
        " store. A store with one writer may try its lock, once, for a transaction that was open before it was joined."
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
