"""Transactions that commit together with rows of the application, by one COMMIT of its database connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from txnframework.broker import Host
from txnframework.client._base import RetryPolicy, require_open
from txnframework.client._transaction import Transaction
from txnframework.errors import InvalidInput, InvalidTransactionState, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.interfaces import IDatabaseTransaction, IJointCoordinator, ITransactionCoordinator
from txnframework.model.ids import Branch, TxnID
from txnframework.model.transactions import Action, Begin, End, State
from txnframework.model.transactions import Transaction as Begun
from txnframework.runtime.tasks import ended, start_task


class CoCommitTransaction(Transaction):
    """
    A transaction whose commit is part of the database transaction of ``connection``.

    No call returns while the connection is still in use, also not for a cancelled caller: the connection belongs to the
    application again as soon as this object is done with it.
    """

    def __init__(
        self,
        host: Host,
        retry: RetryPolicy,
        request: Begin,
        place: tuple[str, str],
        outlives_client: bool,
        connection: object,
    ) -> None:
        super().__init__(host, retry, request, place, outlives_client)
        self._connection = connection
        self._free = asyncio.Event()
        self._joined: IDatabaseTransaction | None = None
        self._commit_begun = False
        # Inside `async with`, which commits at its end.
        self._is_in_block = False

    async def begin(self) -> None:
        """
        Begin the transaction and join the database transaction of the connection; ``async with`` calls this.

        :raises InvalidInput: the connection cannot be joined, or belongs to another open transaction of this client.
        """
        self._host.connections.take(self._connection)
        try:
            # The header is written first, so that every snapshot of the database transaction contains it.
            await super().begin()
        except BaseException:
            self._release()
            raise
        try:
            await self._hold(self._join)
        except BaseException as error:
            await self._abort_after(error, partial(self._hold, partial(self._decide, self._abort_request())))
            raise

    async def commit(self, branches: Iterable[int] = ()) -> None:
        """
        Commit the rows, this branch and ``branches``; see ``Transaction.commit``.

        In a block, only a commit that names branches of other processes is allowed. A row written after a commit would
        be lost without an error.

        :raises InvalidInput: the end of the block commits; nothing was changed.
        """
        branches = frozenset(branches)
        if self._is_in_block and not branches and self._state is State.OPEN:
            raise InvalidInput(
                "the end of the block commits the transaction with its rows; remove the call of commit from the block"
            )
        await super().commit(branches)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._is_in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_in_block = False
        await super().__aexit__(kind, error, trace)

    @contextmanager
    def operation(self) -> Iterator[Branch]:
        """
        Run a send or acknowledgment; see ``TransactionPart.operation``.

        :raises InvalidInput: the rows hold a lock for which the operation would wait.
        """
        if self._joined is not None and (reason := self._joined.store_waits) is not None:
            raise InvalidInput(reason)
        with super().operation() as branch:
            yield branch

    async def _begin(self, coordinator: ITransactionCoordinator) -> Begun:
        co_commits(coordinator)
        return await super()._begin(coordinator)

    async def _join(self) -> None:
        # Not retried: the store has just answered, and a connection of the application that is lost stays lost.
        self._joined = await co_commits(self._coordinator).join(self._connection)

    async def _end(self, end: End) -> None:
        if self._host.closed:
            await self._roll_back()
        require_open(self._host)
        await self._hold(partial(self._decide, end))

    async def _leave(self, end: End) -> None:
        await self._hold(partial(self._decide, end))

    async def _decide(self, end: End) -> None:
        if end.action is Action.ABORT:
            try:
                # First, because the abort may have to wait for locks of the database transaction.
                await self._roll_back()
            finally:
                await super()._decide(end)
        elif self._state is not State.OPEN:
            await super()._decide(end)
        elif self._commit_begun:
            await self._resolve(end)
        else:
            self._commit_begun = True
            await self._commit_both(end)

    async def _commit_both(self, end: End) -> None:
        """Send the COMMIT, once; afterwards the connection is free, whatever happened."""
        joined, coordinator = self._joined, co_commits(self._coordinator)
        assert joined is not None, "it was joined by begin"
        try:
            done = await coordinator.end_with(end, joined)
        except InvalidTransactionState as error:
            await self._roll_back()
            self._ended(end.txn_id, error.actual)
            raise
        except OutcomeUnknown:
            await self._roll_back()
            await self._resolve(end)
            return
        except Exception as error:
            # An error of the driver, for example of a deferred constraint, is raised to the application unchanged.
            await self._roll_back()
            await self._abort_after(error, partial(super()._decide, self._abort_request()))
            raise
        finally:
            self._joined = None
            self._release()
        self._ended_by(end, done.state)

    def _settle(self, txn_id: TxnID) -> None:
        if self._state is State.COMMITTED:
            self._host.own_transactions.settle_committed(txn_id)
        else:
            super()._settle(txn_id)

    async def _resolve(self, end: End) -> None:
        """
        Find out whether a COMMIT was carried out whose reply was lost. It is never sent again.

        An abort succeeds only if the COMMIT was not carried out and never will be.
        """
        coordinator = co_commits(self._coordinator)
        try:
            await self._retry.run(partial(coordinator.end, self._abort_request()))
        except InvalidTransactionState:
            await super()._decide(end)  # it is committed; this compares the branches
            return
        except (Unavailable, OutcomeUnknown) as error:
            self._host.own_transactions.abort_soon(end.txn_id)
            raise OutcomeUnknown(f"transaction {end.txn_id} may be committed, with its rows; {error}") from error
        self._ended(end.txn_id, State.ABORTED)
        reason = "the reply to its COMMIT was lost, and its rows were rolled back"
        raise InvalidTransactionState(end.txn_id, State.ABORTED, reason)

    async def _abort_after(self, error: BaseException, abort: Callable[[], Awaitable[None]]) -> None:
        """Abort after ``error``; a failure of the abort becomes a note of the error."""
        try:
            await abort()
        except InvalidTransactionState as decided:
            error.add_note(f"transaction {self.id} is {decided.actual.value} nevertheless, with its rows")
        except TxnFrameworkError as failed:
            error.add_note(f"transaction {self.id} could not be aborted yet, which is retried: {failed}")

    def _abort_request(self) -> End:
        return End(self.id, Action.ABORT, self.principal)

    async def _hold(self, work: Callable[[], Awaitable[None]]) -> None:
        """
        Run a step that uses the connection to its end; a cancelled caller waits until the connection is free.

        Otherwise the application could close its connection while the step uses it.
        """
        step = self._host.steps.begin(work, (self.id,))
        try:
            await self._host.steps.end_of(step, (self.id,))
        except asyncio.CancelledError:
            free = start_task(self._free.wait())
            await ended(step, free)
            free.cancel()
            raise

    async def _roll_back(self) -> None:
        joined, self._joined = self._joined, None
        try:
            if joined is not None:
                await joined.rollback()
        finally:
            self._release()

    def _release(self) -> None:
        self._host.connections.give_back(self._connection)
        self._free.set()


def co_commits(coordinator: ITransactionCoordinator | None) -> IJointCoordinator:
    """
    Return the coordinator as one that commits together with rows.

    :raises InvalidInput: it cannot.
    """
    if not IJointCoordinator.providedBy(coordinator):
        family = "this" if coordinator is None else f"the {coordinator.family}"
        raise InvalidInput(f"commit_with needs transactions of the metadata family; {family} family cannot do that")
    return coordinator
