"""The step that is a whole transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

from txnframework.broker import Host, StepWithRowsRefused, WaitingTransaction
from txnframework.client._base import require_open
from txnframework.client._joint.acks import SegmentAcks, segment_acks
from txnframework.client._joint.appends import JointAppends
from txnframework.client._joint.refusals import REFUSALS, StepsNeeded
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedAck, PlannedOperation, PlannedSend
from txnframework.client._transaction import TransactionPart
from txnframework.errors import OutcomeUnknown, TxnFrameworkError
from txnframework.interfaces import IDatabaseTransaction, IJointCoordinator
from txnframework.model.ids import Branch
from txnframework.model.joint import JointTransaction
from txnframework.model.transactions import Begin, State, Transaction
from txnframework.runtime.tasks import ended


async def transact_jointly(
    host: Host,
    place: tuple[str, str],
    request: Begin,
    operations: Sequence[PlannedOperation],
    rows: IDatabaseTransaction | None = None,
) -> tuple[MessageID, ...] | None:
    """
    Perform the operations in one step, and return the ids of the messages; None: nothing was written.

    :param rows: a transaction of the application, which the step commits; after None it is still open.
    :raises StepWithRowsRefused: the store has refused a step with ``rows``; nothing was written.
    :raises OutcomeUnknown: everything took effect or nothing.
    """
    require_open(host)
    coordinator = IJointCoordinator(await host.coordinator(*place), None)
    sends = [one for one in operations if isinstance(one, PlannedSend)]
    acks = [one for one in operations if isinstance(one, PlannedAck)]
    if coordinator is None:
        return None
    if any(one.has_chosen_sequence for one in sends):
        return None  # an earlier call may have stored such a message, and only a send finds its copy
    try:
        branch = Branch(await coordinator.reserve_id())
        return await _JointTransaction(host, coordinator, branch, request, rows).perform(sends, acks)
    except StepWithRowsRefused:
        raise
    except REFUSALS:
        return None


class _JointTransaction:
    """One attempt to make a transaction in one step."""

    def __init__(
        self,
        host: Host,
        coordinator: IJointCoordinator,
        branch: Branch,
        request: Begin,
        rows: IDatabaseTransaction | None,
    ) -> None:
        self._host = host
        self._coordinator = coordinator
        self._branch = branch
        self._request = request
        self._rows = rows

    async def perform(self, sends: Sequence[PlannedSend], acks: Sequence[PlannedAck]) -> tuple[MessageID, ...]:
        """Make the step, or raise one of the refusals."""
        principal = self._request.principal
        acking = segment_acks(acks, self._branch, principal)
        appends = JointAppends(self._host, self._branch, principal)
        with ExitStack() as held, ExitStack() as until:
            part = TransactionPart(self._branch, principal, self._host.metadata.identity)
            for one in acks:
                until.enter_context(one.observed(part))
            try:
                await appends.add(sends, until, held)
                await self._finish(partial(self._make, appends, acking), held.pop_all())
            except StepWithRowsRefused:
                raise
            except REFUSALS as error:
                raise StepsNeeded from error  # observers see the usual steps only
            ids = appends.ids()
        return tuple([ids[one] for one in sends])

    async def _finish(self, make: Callable[[], Awaitable[None]], held: ExitStack) -> None:
        """
        Make the step, also if the caller is cancelled: it must not be open whether its messages are acknowledged.

        The quotas are held until the step is over. So closing a producer waits for a step without a caller, too.
        """
        steps, keys = self._host.steps, (self._branch.txn_id,)
        step = steps.begin(partial(_refusal, make), keys)
        step.add_done_callback(lambda _: held.close())
        try:
            refused = await steps.end_of(step, keys)
        except asyncio.CancelledError:
            if self._rows is not None:
                await ended(step)  # it uses the connection
            raise
        if refused is not None:
            raise refused

    async def _make(self, appends: JointAppends, acking: Sequence[SegmentAcks]) -> None:
        own = self._host.own_transactions
        if acking:
            own.abort_in_time(self._as_open())
        transaction = WaitingTransaction(
            self._coordinator,
            JointTransaction(self._branch.txn_id, self._request.principal),
            appends.requests(),
            tuple([one.stored for one in acking]),
        )
        try:
            for one in acking:
                one.begin()
            await self._host.joint_steps.commit(transaction, self._rows)
            own.outcomes.note(self._branch, counts=True)
            for one in acking:
                one.committed()
        except BaseException as error:
            for one in acking:
                one.failed(error)
            raise
        finally:
            for one in acking:
                one.end()
            own.end_settled(self._branch.txn_id)
        try:
            await appends.confirm(transaction.positions)
            for one in acking:
                await one.note()
        except TxnFrameworkError as error:
            # Other errors would let the usual steps follow, and store everything a second time.
            raise OutcomeUnknown(
                f"transaction {self._branch.txn_id} is committed, and what it wrote could not be read: {error}"
            ) from error

    def _as_open(self) -> Transaction:
        """Return the transaction as if it was open: dispatches let it report its end."""
        now_ms = self._host.environment.now_ms()
        return Transaction(self._branch.txn_id, State.OPEN, now_ms + self._request.timeout_ms, now_ms)


async def _refusal(make: Callable[[], Awaitable[None]]) -> Exception | None:
    """Make a step, and return a refusal: without a caller, no steps follow it, and nothing has failed."""
    try:
        await make()
    except REFUSALS as error:
        return error
    return None
