"""The step that is a whole transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from txnframework.broker import Host, StepWithRowsRefused, WaitingTransaction
from txnframework.client._base import require_open
from txnframework.client._joint.acks import SegmentAcks, segment_acks
from txnframework.client._joint.appends import JointAppends
from txnframework.client._joint.refusals import REFUSALS, StepsNeeded
from txnframework.client._messages import MessageID
from txnframework.client._observations import acks_in
from txnframework.client._planned import PlannedAck, PlannedOperation, PlannedSend
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
    coordinator = await host.coordinator(*place)
    if not IJointCoordinator.providedBy(coordinator) or not coordinator.has_one_database:
        return None
    sends = [one for one in operations if isinstance(one, PlannedSend)]
    acks = [one for one in operations if isinstance(one, PlannedAck)]
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
        acking = segment_acks(acks, self._branch, self._request.principal)
        observer = self._host.observer
        if observer is None:
            return await self._perform(sends, acking, None)
        with ExitStack() as until:
            for one in acks:
                until.enter_context(acks_in(observer, one.acks.subscription, one.messages, self._branch.txn_id))
            try:
                return await self._perform(sends, acking, until)
            except StepWithRowsRefused:
                raise
            except REFUSALS as error:
                raise StepsNeeded from error  # observers see the usual steps only

    async def _perform(
        self, sends: Sequence[PlannedSend], acking: Sequence[SegmentAcks], until: ExitStack | None
    ) -> tuple[MessageID, ...]:
        """
        Make the step, also if the caller is cancelled: it must not be open whether its messages are acknowledged.

        The quotas are held until the step is over. So closing a producer waits for a step without a caller, too.
        """
        appends = JointAppends(self._host, self._branch, self._request.principal)
        try:
            await appends.add(sends, until)
        except BaseException:
            appends.release()
            raise
        steps, keys = self._host.steps, (self._branch.txn_id,)
        step = steps.begin(partial(self._make, appends, acking), keys)
        step.add_done_callback(appends.release)
        try:
            refused = await steps.end_of(step, keys)
        except asyncio.CancelledError:
            if self._rows is not None:
                await ended(step)  # it uses the connection
            raise
        if refused is not None:
            raise refused
        return tuple([appends.ids[one] for one in sends])

    async def _make(self, appends: JointAppends, acking: Sequence[SegmentAcks]) -> Exception | None:
        """Make the step, and return a refusal: without a caller, no steps follow it, and nothing has failed."""
        own, principal = self._host.own_transactions, self._request.principal
        if acking:
            own.abort_in_time(self._as_open())
        transaction = WaitingTransaction(
            self._coordinator,
            JointTransaction(self._branch.txn_id, principal),
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
            if isinstance(error, REFUSALS):
                return error
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
        return None

    def _as_open(self) -> Transaction:
        """Return the transaction as if it was open: dispatches let it report its end."""
        now_ms = self._host.environment.now_ms()
        return Transaction(self._branch.txn_id, State.OPEN, now_ms + self._request.timeout_ms, now_ms)
