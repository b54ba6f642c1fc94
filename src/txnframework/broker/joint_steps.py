"""Transactions that are one step of the store, of which those that wait at the same time share a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from txnframework.broker.observers import Superseded
from txnframework.errors import (
    Closed,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.interfaces import IDatabaseTransaction, IJointCoordinator, IObserver, IPendingAckStore
from txnframework.model.acks import AckRequest
from txnframework.model.joint import JointAck, JointCommit, JointTransaction
from txnframework.model.ledger import Append
from txnframework.model.metadata import Record
from txnframework.model.observations import SUCCEEDED, ObservedOperation, OperationKind, Outcome
from txnframework.model.positions import Position
from txnframework.model.steps import LedgerAppend
from txnframework.model.transactions import Action
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules

JOINT_REFUSALS = (Conflict, NotFound, Unavailable, InvalidInput)
"""The errors of ``commit_jointly`` after which nothing is written, now or later, so that the usual steps follow."""

_GROUP_BYTES_MAX = 1 << 20
_TRANSACTION_BYTES = 1_000
"""About what a transaction adds to a step besides the data of its entries."""


class StepWithRowsRefused(Superseded):
    """
    A step with rows was refused; ``error`` says why. Nothing is written, now or later, and the rows can be gone.

    So no other steps may follow on the connection: they would take effect without the rows.
    """

    def __init__(self, error: TxnFrameworkError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(eq=False, slots=True)
class WaitingTransaction:
    """
    A transaction whose operations are all known: its entries, and its acknowledgments with their stores.

    ``acks``: one of each subscription on a segment, in the order of segments and subscriptions.
    ``positions``: those of its entries, in the order of ``appends``, once it is committed. None: the reply of the step
    was lost, and the header showed that it was applied.
    """

    coordinator: IJointCoordinator
    transaction: JointTransaction
    appends: tuple[LedgerAppend, ...]
    acks: tuple[tuple[IPendingAckStore, AckRequest], ...]
    positions: tuple[tuple[Position, ...], ...] | None = None

    @property
    def bytes(self) -> int:
        """About how much it adds to a step."""
        return _TRANSACTION_BYTES + sum(len(entry.data) for one in self.appends for entry in one.entries)


class JointSteps:
    """
    Commits transactions in steps of the store: all that wait while a step is under way share the next one.

    A step is all or nothing. If one of several transactions cannot be part of it, each is committed by itself, one
    after the other, so none fails because of another one. The cursor of a subscription on a segment moves once in a
    step, by the acknowledgments of all its transactions.
    """

    def __init__(self, observer: IObserver | None = None) -> None:
        self._observer = observer
        self._groups: CallGroups[WaitingTransaction] = CallGroups(
            self._perform,
            GroupRules(
                joins=lambda one, first: one.coordinator is first.coordinator,
                size=lambda one: one.bytes,
                size_max=_GROUP_BYTES_MAX,
                what="a transaction in one step",
            ),
        )

    async def commit(self, transaction: WaitingTransaction, rows: IDatabaseTransaction | None = None) -> None:
        """
        Commit a transaction, and set its positions. With ``rows`` of an application, it is a step by itself.

        :raises Superseded: the transaction cannot be one step; nothing was written.
        :raises StepWithRowsRefused: the step was refused; nothing was written.
        :raises TxnFrameworkError: as ``IJointCoordinator.commit_jointly``.
        """
        if self._observer is None:
            await self._commit(transaction, rows)
            return
        # Reported here and not by the step, which runs in the context of one of its callers.
        with _observing(self._observer, transaction):
            await self._commit(transaction, rows)

    async def _commit(self, transaction: WaitingTransaction, rows: IDatabaseTransaction | None) -> None:
        if rows is None:
            await self._groups.add(transaction)
        else:
            await _commit((transaction,), rows)

    async def close(self) -> None:
        """Stop; a step that is under way has an unknown outcome."""
        await self._groups.close()

    async def _perform(self, waiting: Sequence[WaitingTransaction]) -> Answers:
        try:
            await _commit(waiting)
        except Unavailable as error:
            return [error] * len(waiting)
        except (Superseded, *JOINT_REFUSALS) as error:
            if len(waiting) == 1:
                return [error]
        except Exception as error:
            return [error] * len(waiting)
        else:
            return [None] * len(waiting)
        answers: list[Exception | None] = []
        for one in waiting:
            answers += await self._perform((one,))
        return answers


@contextmanager
def _observing(observer: IObserver, waiting: WaitingTransaction) -> Iterator[None]:
    """Report the beginning and the end of a transaction, unless it is refused."""
    txn_id, family = waiting.transaction.txn_id, waiting.coordinator.family
    beginning = observer.begins(ObservedOperation(OperationKind.BEGIN, txn_id=txn_id, family=family))
    commit = ObservedOperation(OperationKind.END, txn_id=txn_id, family=family, action=Action.COMMIT.value)
    ending = observer.begins(commit)
    try:
        yield
    except (Superseded, *JOINT_REFUSALS) as error:
        for one in (beginning, ending):
            one.ends(Outcome(error, is_superseded=True))
        raise
    except BaseException as error:
        beginning.ends(Outcome(txn_id=txn_id))
        ending.ends(Outcome(error))
        raise
    beginning.ends(Outcome(txn_id=txn_id))
    ending.ends(SUCCEEDED)


async def _commit(waiting: Sequence[WaitingTransaction], rows: IDatabaseTransaction | None = None) -> None:
    """Plan the moves of all cursors, make the step, and end the plans, whatever came of it."""
    plans: list[tuple[IPendingAckStore, JointAck]] = []
    cursors: Sequence[Record | None] | None = None
    try:
        # In one order, so that two processes never wait for each other's plans.
        for store, requests in _by_cursor(waiting):
            try:
                planned = await store.plan_joint(requests)
            except Closed:
                planned = None  # the lease was lost, and the usual steps acknowledge past the dispatch
            if planned is None:
                raise Superseded
            plans.append((store, planned))
        transactions = tuple([one.transaction for one in waiting])
        acks = tuple([planned for _, planned in plans])
        request = JointCommit(transactions, _joined(waiting), acks)
        try:
            done = await waiting[0].coordinator.commit_jointly(request, rows)
        except JOINT_REFUSALS as error:
            if rows is None:
                raise
            raise StepWithRowsRefused(error) from error
        cursors = done.cursors
    finally:
        await _finish(plans, cursors)
    if done.positions is not None:
        _divide(waiting, done.positions)


async def _finish(plans: Sequence[tuple[IPendingAckStore, JointAck]], cursors: Sequence[Record | None] | None) -> None:
    """End each plan, also after an error: a plan that is not ended holds up its subscription permanently."""
    failure: BaseException | None = None
    for at, (store, planned) in enumerate(plans):
        try:
            await store.finish_joint(planned, cursors[at] if cursors else None)
        except BaseException as error:
            failure = failure or error
    if isinstance(failure, TxnFrameworkError):
        # Other errors would let the usual steps follow, and store everything a second time.
        raise OutcomeUnknown(f"a step may be committed, and the end of it could not be noted: {failure}") from failure
    if failure is not None:
        raise failure


def _by_cursor(
    waiting: Sequence[WaitingTransaction],
) -> list[tuple[IPendingAckStore, tuple[AckRequest, ...]]]:
    """Return the acknowledgments of all transactions by their stores, in the order of segments and subscriptions."""
    if len(waiting) == 1:
        return [(store, (request,)) for store, request in waiting[0].acks]
    found: dict[tuple[str, str], tuple[IPendingAckStore, list[AckRequest]]] = {}
    for one in waiting:
        for store, request in one.acks:
            found.setdefault((store.segment, store.subscription), (store, []))[1].append(request)
    return [(store, tuple(requests)) for _, (store, requests) in sorted(found.items(), key=lambda item: item[0])]


def _joined(waiting: Sequence[WaitingTransaction]) -> tuple[LedgerAppend, ...]:
    """Return the entries of all transactions by their ledgers; pure."""
    if len(waiting) == 1:
        return waiting[0].appends
    entries: dict[object, list[Append]] = {}
    for one in waiting:
        for append in one.appends:
            entries.setdefault(append.ledger, []).extend(append.entries)
    return tuple([LedgerAppend(ledger, tuple(some)) for ledger, some in entries.items()])


def _divide(waiting: Sequence[WaitingTransaction], positions: Sequence[tuple[Position, ...]]) -> None:
    """Give each transaction the positions of its entries, in the order of ``_joined``."""
    if len(waiting) == 1:
        waiting[0].positions = tuple(positions)
        return
    ledgers = dict.fromkeys(append.ledger for one in waiting for append in one.appends)
    left = {ledger: iter(some) for ledger, some in zip(ledgers, positions, strict=True)}
    for one in waiting:
        one.positions = tuple([tuple([next(left[append.ledger]) for _ in append.entries]) for append in one.appends])
