"""Transactions whose operations are all known, and that commit together with rows of the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

from msgspec.structs import replace

from txnframework.broker import Host, StepWithRowsRefused
from txnframework.client._base import RetryPolicy, require_open
from txnframework.client._co_commit import CoCommitTransaction, co_commits
from txnframework.client._joint.transaction import transact_jointly
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedOperation, PlannedSend, by_producer
from txnframework.client._transact import perform, require_place
from txnframework.client._transaction import Transaction
from txnframework.errors import InvalidInput, InvalidTransactionState, TransactionConflict, Unavailable
from txnframework.interfaces import IDatabaseTransaction, IJointCoordinator
from txnframework.model.transactions import Begin
from txnframework.runtime.tasks import uninterrupted

Usual = Callable[[tuple[str, str], object], AbstractAsyncContextManager[Transaction]]
"""Returns the block of a transaction of a place that commits with a connection."""


class RowsRefused(TransactionConflict):
    """The stores refused a step with rows, because of what else happens meanwhile: the same work may succeed later."""


def usual_block(
    host: Host, retry: RetryPolicy, request: Begin, place: tuple[str, str], connection: object
) -> CoCommitTransaction:
    """Return the block of a transaction that commits with a connection, step by step."""
    return CoCommitTransaction(host, retry, replace(request, co_commit=True), place, False, connection)


class JoinedRows:
    """
    A connection of the application, in a database transaction that its next ``transact`` commits.

    No call returns while the connection is still in use, also not for a cancelled caller.
    """

    def __init__(
        self, host: Host, coordinator: IJointCoordinator, connection: object, joined: IDatabaseTransaction
    ) -> None:
        self._host = host
        self._coordinator = coordinator
        self._connection = connection
        self._joined = joined

    @classmethod
    async def join(cls, host: Host, place: tuple[str, str], connection: object) -> JoinedRows:
        """
        Join the open transaction of a connection; begin one if none is open.

        :raises InvalidInput: the connection cannot be joined, or belongs to another open transaction of this client.
        """
        require_open(host)
        coordinator = co_commits(await host.coordinator(*place))
        host.connections.take(connection)
        try:
            joined = await uninterrupted(coordinator.join(connection))
        except BaseException:
            host.connections.give_back(connection)
            raise
        return cls(host, coordinator, connection, joined)

    async def transact(
        self, operations: Sequence[PlannedOperation], request: Begin, usual: Usual
    ) -> tuple[MessageID, ...]:
        """
        Commit the rows and the operations, or roll the rows back, and return the ids of the messages.

        If the client knows that the operations cannot be one step, the same connection commits a transaction with the
        usual steps. They never follow a step that was sent to the store: the rows may be gone with it, and the
        messages would take effect without them.

        :raises RowsRefused: the stores refused the step.
        :raises InvalidInput: the step cannot be made with this connection, and neither can the usual steps.
        :raises Unavailable: the stores or the connection could not be reached; nothing was written.
        """
        try:
            place = await require_place(self._host, operations)
            done = await self._transact_jointly(place, request, operations)
            if done is None:
                self._require_usual(operations)
                # The block joins the database transaction, which still has the rows.
                self._host.connections.give_back(self._connection)
                async with usual(place, self._connection) as txn:
                    done = await perform(txn, operations)
                await self._joined.rollback()  # it has ended, which its driver may not know
        except BaseException:
            await self.rollback()
            raise
        self._host.connections.give_back(self._connection)
        with suppress(Unavailable):  # the next transaction tries again
            await self._coordinator.prepare()
        return done

    async def _transact_jointly(
        self, place: tuple[str, str], request: Begin, operations: Sequence[PlannedOperation]
    ) -> tuple[MessageID, ...] | None:
        try:
            return await transact_jointly(self._host, place, request, operations, self._joined)
        except StepWithRowsRefused as refused:
            if isinstance(refused.error, InvalidInput | Unavailable):
                raise refused.error from None
            await self._catch_up(operations)
            if isinstance(refused.error, InvalidTransactionState):
                reason = "the reply to its COMMIT was lost, and its rows were rolled back"
            else:
                reason = "something else has changed what it is about"
            raise RowsRefused(None, f"{reason}; do the work again, with its rows") from refused.error

    def _require_usual(self, operations: Sequence[PlannedOperation]) -> None:
        """Raise an error if the usual steps would wait for the rows."""
        waits = self._joined.store_waits
        if waits is None:
            return
        if any(isinstance(one, PlannedSend) and one.has_chosen_sequence for one in operations):
            raise InvalidInput(f"a message with a sequence id of your choice is stored before the COMMIT: {waits}")
        if not self._coordinator.has_one_database:
            raise InvalidInput(f"messages and acknowledgments are stored before the COMMIT here: {waits}")
        raise RowsRefused(None, "something else is under way with what it is about; do the work again, with its rows")

    async def _catch_up(self, operations: Sequence[PlannedOperation]) -> None:
        """Roll back, then follow what may have refused the step, so that the next one need not be refused."""
        await self.rollback()
        sends = by_producer(one for one in operations if isinstance(one, PlannedSend))
        await asyncio.gather(*(one.catch_up() for one in sends))

    async def rollback(self) -> None:
        """Roll the rows back unless they are committed; the connection is free then."""
        try:
            await uninterrupted(self._joined.rollback())
        finally:
            self._host.connections.give_back(self._connection)
