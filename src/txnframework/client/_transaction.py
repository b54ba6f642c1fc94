"""Transactions: the part that ends one, and the parts that join it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from txnframework.broker import Host
from txnframework.client._base import RetryPolicy, client_closed, require_open
from txnframework.client._caught_cancellation import BlockCancellations
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidInput,
    InvalidTransactionState,
    TransactionConflict,
    TransactionHasFailedOperations,
    TxnFrameworkError,
)
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import Branch, TxnID
from txnframework.model.transactions import Action, Begin, End, State
from txnframework.model.transactions import Transaction as Begun


def part_of(txn: object, host: Host) -> TransactionPart:
    """
    Return the transaction that a caller passed to an object of ``host``.

    Ids are unique in one deployment only. So a transaction of another deployment could be taken for a transaction here
    that has the same id.

    :raises InvalidInput: the value is something else, such as a transaction id, or it belongs to another deployment.
    """
    if isinstance(txn, TransactionPart):
        if txn.deployment != host.metadata.identity:
            raise InvalidInput(
                "the transaction belongs to a client of other stores; one transaction cannot cover two deployments"
            )
        return txn
    raise InvalidInput(
        f"txn is what client.transaction() or, by its id, client.join() returned; this is of the type "
        f"{type(txn).__name__}"
    )


def operation_in(txn: TransactionPart | None, host: Host) -> AbstractContextManager[Branch | None]:
    """Return the block of one send or acknowledgment, in a transaction or (None) outside of transactions."""
    return _OUTSIDE if txn is None else part_of(txn, host).operation()


_OUTSIDE: Final[AbstractContextManager[None]] = nullcontext()


class _Operation(AbstractContextManager[Branch]):
    """The block of one operation; every send has one, and a generator would take three times as long."""

    __slots__ = ("_part",)

    def __init__(self, part: TransactionPart) -> None:
        self._part = part

    def __enter__(self) -> Branch:
        return self._part._operation_begins()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._part._operation_ends(error)


class TransactionPart:
    """
    One process's part of a transaction: its sends and acknowledgments, under a branch of its own.

    A send or acknowledgment that fails or is cancelled poisons the part, which then can no longer be committed.
    """

    def __init__(self, branch: Branch | None, principal: str, deployment: str) -> None:
        self.deployment = deployment
        """The identity of the stores in which the transaction is recorded."""
        self.principal = principal
        """The principal of this part's sends and acknowledgments, and of the end if this process began it."""
        self._branch = branch
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._poisoned = False
        self._failure: BaseException | None = None
        self._closed_by: str | None = None
        self._cancellations = BlockCancellations()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._known_as()}>"

    @property
    def id(self) -> TxnID:
        """The transaction's id; another process takes part with ``Client.join``."""
        return self._begun().txn_id

    @property
    def branch(self) -> int:
        """The number of this part's branch; 0 is the branch of the process that ends the transaction."""
        return self._begun().number

    def operation(self) -> AbstractContextManager[Branch]:
        """
        Run a send or acknowledgment; an exception that leaves the block, also a cancellation, poisons the part.

        :raises TransactionConflict: this part has ended; raised on entering the block.
        """
        return _Operation(self)

    def _operation_begins(self) -> Branch:
        branch = self._begun()
        if self._closed_by is not None:
            raise TransactionConflict(branch.txn_id, self._closed_by)
        self._in_flight += 1
        self._idle.clear()
        return branch

    def _operation_ends(self, error: BaseException | None) -> None:
        if error is not None:
            self._poisoned = True
            self._failure = self._failure or error
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def _until_idle(self, closed_by: str) -> None:
        """Refuse further operations, and wait for those in flight."""
        self._closed_by = self._closed_by or closed_by
        await self._idle.wait()

    def _known_as(self) -> str:
        """Return the description for ``repr``."""
        return "not begun" if self._branch is None else f"{self._branch.txn_id}, branch {self._branch.number}"

    def _begun(self) -> Branch:
        if self._branch is None:
            raise InvalidInput("the transaction has not begun; use it inside 'async with client.transaction()'")
        return self._branch


class Transaction(TransactionPart):
    """
    A transaction that this process ends; created by ``Client.transaction``.

    ``async with`` begins it, commits on success, and aborts on an exception, which is raised again. A block that
    catches a cancellation of its task and ends is aborted, too, and the cancellation is raised at its end. To commit
    instead, call ``asyncio.current_task().uncancel()`` where it is caught, or ``commit``. Once decided, the outcome
    takes effect everywhere even without this process.
    """

    _ends_with_block = False
    """Whether no program can repeat a commit that failed; the transaction is then aborted unless it is committed."""

    def __init__(
        self, host: Host, retry: RetryPolicy, request: Begin, place: tuple[str, str], outlives_client: bool
    ) -> None:
        super().__init__(None, request.principal, host.metadata.identity)
        self._request = request
        self._place = place
        self._outlives_client = outlives_client
        self._host = host
        self._retry = retry
        # The coordinator with which the transaction began.
        self._coordinator: ITransactionCoordinator | None = None
        self._state = State.OPEN

    @property
    def state(self) -> State:
        """OPEN, COMMITTED or ABORTED, as last known to this process."""
        return self._state

    def _known_as(self) -> str:
        return "not begun" if self._branch is None else f"{self._branch.txn_id}, {self._state.value}"

    async def begin(self) -> None:
        """
        Begin the transaction; ``async with`` calls this.

        If the caller is cancelled, this object has not begun, and a transaction that began in the stores is aborted.

        :raises OutcomeUnknown: a transaction may have begun in the stores, and will time out; this object has not
            begun.
        """
        if self._branch is not None:
            raise InvalidInput(f"transaction {self.id} has begun already; make another one")
        require_open(self._host)
        self._cancellations.enter()
        begun = await self._begin_for_caller()
        self._branch = Branch(begun.txn_id)
        self._host.own_transactions.abort_in_time(begun)

    async def _begin_for_caller(self) -> Begun:
        return await self._host.steps.finish(self._begin_in_store, undo=self._forget)

    async def _begin_in_store(self) -> Begun:
        self._coordinator = coordinator = await self._host.coordinator(*self._place)
        return await self._begin(coordinator)

    async def _begin(self, coordinator: ITransactionCoordinator) -> Begun:
        # The session is opened even if the transaction does not name it. Its end shows other processes that the timer
        # of this transaction ended with this process.
        session = await self._retry.run(self._host.sessions.own)
        request = msgspec.structs.replace(self._request, session=None if self._outlives_client else session)
        return await self._retry.run(coordinator.begin, request)

    async def _forget(self, begun: Begun) -> None:
        """Abort a transaction that began for a cancelled caller."""
        own = self._host.own_transactions
        own.abort_in_time(begun)
        try:
            coordinator = await self._host.coordinator(*self._place)
            await self._retry.run(coordinator.end, End(begun.txn_id, Action.ABORT, self.principal))
        except TxnFrameworkError:
            own.abort_soon(begun.txn_id)
            raise
        own.settle_soon(begun.txn_id)

    async def commit(self, branches: Iterable[int] = ()) -> None:
        """
        Wait for the sends and acknowledgments in flight, then commit this branch and ``branches``.

        Repeating the same commit succeeds.

        If the caller is cancelled during the wait, the transaction is aborted. If it is cancelled later, the commit is
        still carried out. Repeating the commit then waits for it and succeeds; ``Client.outcome`` also waits and
        returns the outcome.

        :param branches: the numbers of the joined branches that count, as ``JoinedTransaction.finish`` returned them.
        :raises TransactionHasFailedOperations: a send or acknowledgment failed (the first failure is the cause); the
            transaction was aborted.
        :raises InvalidTransactionState: the transaction has ended with another outcome, for instance by its timeout;
            the error has the outcome.
        :raises OutcomeUnknown: the transaction may be committed; ``Client.outcome`` returns its state.
        :raises EndTransactionTimeout: in the log family: the commit is decided but has not taken effect everywhere yet.
        """
        branch = self._begun()
        counting = frozenset({branch.number, *branches})
        try:
            await self._until_idle("its commit has begun")
        except asyncio.CancelledError:
            # Nothing is decided. Operations in flight may still be stored, so this part must not be committed later.
            self._poisoned = True
            await self._leave(End(branch.txn_id, Action.ABORT, self.principal))
            raise
        if self._poisoned and self._state is State.OPEN:
            await self.abort()
            raise TransactionHasFailedOperations(branch.txn_id, self._failure) from self._failure
        await self._end(End(branch.txn_id, Action.COMMIT, self.principal, counting))

    async def abort(self) -> None:
        """
        Abort the transaction without waiting for operations in flight; repeating the abort succeeds.

        If the caller is cancelled, the abort is still carried out. If the stores are unavailable, this process retries
        the abort in the background, until the transaction times out.

        :raises InvalidTransactionState: the transaction was committed.
        :raises Unavailable: the transaction is still open.
        :raises OutcomeUnknown: the transaction may still be open; ``Client.outcome`` returns its state.
        """
        txn_id = self.id
        self._closed_by = "it was aborted"
        await self._end(End(txn_id, Action.ABORT, self.principal))

    async def _end(self, end: End) -> None:
        if self._host.closed:
            raise client_closed(self._host)
        await self._host.steps.finish(partial(self._decide, end), (end.txn_id,))

    async def _leave(self, end: End) -> None:
        """End the transaction for a cancelled caller, which does not wait."""
        self._host.steps.leave(partial(self._decide, end), (end.txn_id,))

    async def _decide(self, end: End) -> None:
        coordinator = self._coordinator
        assert coordinator is not None, "it has begun"
        try:
            ended = await self._retry.run(coordinator.end, end)
        except EndTransactionTimeout:
            self._ended_by(end, State.COMMITTED if end.action is Action.COMMIT else State.ABORTED)
            raise
        except InvalidTransactionState as error:
            self._ended(end.txn_id, error.actual)
            raise
        except TxnFrameworkError:
            if end.action is Action.ABORT or self._ends_with_block:
                self._host.own_transactions.abort_soon(end.txn_id)
            raise
        self._ended_by(end, ended.state)

    def _ended_by(self, end: End, state: State) -> None:
        assert self._branch is not None, "it has begun"
        self._host.own_transactions.outcomes.note(self._branch, counts=end.action is Action.COMMIT)
        self._ended(end.txn_id, state)

    def _ended(self, txn_id: TxnID, state: State) -> None:
        self._state = state
        self._closed_by = f"it has ended ({state.value}); begin another one"
        self._settle(txn_id)

    def _settle(self, txn_id: TxnID) -> None:
        self._host.own_transactions.settle_soon(txn_id)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is not State.OPEN:
            return
        caught = self._cancellations.caught(self.id) if error is None else None
        reason = error or caught
        if reason is None:
            await self.commit()
            return
        try:
            await self.abort()
        except TxnFrameworkError as failed:
            reason.add_note(f"transaction {self.id} could not be aborted yet, which is retried: {failed}")
        if caught is not None:
            raise caught


class BlockTransaction(Transaction):
    """A transaction that its block ends: no program has it afterwards, and could repeat a commit that failed."""

    _ends_with_block = True


class JoinedTransaction(TransactionPart):
    """
    A part of a transaction that another process ends; created by ``Client.join``.

    Report ``branch`` to that process only after ``finish`` has returned; leaving ``async with`` calls ``finish``.
    """

    async def finish(self) -> int:
        """
        Wait for the operations in flight, and return the branch to report.

        :raises TransactionHasFailedOperations: a send or acknowledgment failed; do not report the branch.
        """
        await self._until_idle("this part of it was finished")
        if self._poisoned:
            raise TransactionHasFailedOperations(self.id, self._failure) from self._failure
        return self.branch

    async def __aenter__(self) -> Self:
        self._cancellations.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        caught = self._cancellations.caught(self.id) if error is None else None
        if error is None and caught is None:
            await self.finish()
            return
        self._poisoned = True
        self._failure = self._failure or caught
        self._closed_by = "this part of it was given up"
        if caught is not None:
            raise caught
