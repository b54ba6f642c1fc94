"""The observers of a host: those that its configuration names, and the one that counts for metrics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from zope.interface import implementer

from txnframework.config import Config
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.instruments import Instruments
from txnframework.interfaces import (
    IApplicationCoordinator,
    ICoCommitCoordinator,
    IDatabaseTransaction,
    IObservation,
    IObserver,
    ITransactionCoordinator,
)
from txnframework.model.ids import TxnID
from txnframework.model.observations import SUCCEEDED, ObservedOperation, OperationKind, Outcome
from txnframework.model.transactions import BatchID, Begin, End, SourceRange, SweepResult, Transaction
from txnframework.plugin import ObserverContext, PluginRegistry
from txnframework.runtime.proxy import ForwardingProxy

BATCHES_MAX = 100
"""The most micro-batches of one process that are open at a time; of more, the first ones are not reported."""


async def open_observers(config: Config, registry: PluginRegistry, environment: Environment) -> tuple[IObserver, ...]:
    """Open the observers that the configuration names; ``[observers.NAME]`` enables one, with its options."""
    opened: list[IObserver] = []
    for name, table in config.observers.items():
        provider = registry.observer(name)
        context = ObserverContext(environment, registry.decode_options(provider, table))
        opened.append(await registry.open(provider, context))
    return tuple(opened)


def combined(observers: Sequence[IObserver]) -> IObserver | None:
    """Return one observer that notifies all of them; None for none."""
    if len(observers) < 2:
        return observers[0] if observers else None
    return IObserver(SeveralObservers(observers))


@implementer(IObservation)
class SeveralObservations:
    """The observations of one operation."""

    def __init__(self, observations: Sequence[IObservation]) -> None:
        self._observations = observations
        self.headers = tuple(header for one in observations for header in one.headers)

    def ends(self, outcome: Outcome) -> None:
        """Notify all observers."""
        for one in self._observations:
            one.ends(outcome)


@implementer(IObserver)
class SeveralObservers:
    """Notifies several observers; numbers go to the first one that records them."""

    def __init__(self, observers: Iterable[IObserver]) -> None:
        self._observers = tuple(observers)
        self.instruments: Instruments | None = next(
            (one.instruments for one in self._observers if one.instruments is not None), None
        )

    def begins(self, operation: ObservedOperation) -> IObservation:
        """Notify all observers."""
        return IObservation(SeveralObservations([one.begins(operation) for one in self._observers]))


@contextmanager
def observing(observer: IObserver, operation: ObservedOperation) -> Iterator[IObservation]:
    """Report an operation, and the end of the block as its end."""
    observation = observer.begins(operation)
    try:
        yield observation
    except BaseException as error:
        observation.ends(Outcome(error))
        raise
    observation.ends(SUCCEEDED)


class ObservedCoordinator(ForwardingProxy):
    """Reports what callers of this process do with transactions."""

    _behind: Any

    def __init__(self, behind: ITransactionCoordinator, observer: IObserver) -> None:
        super().__init__(behind)
        self._observer = observer
        self._family = behind.family
        self._batches: OrderedDict[TxnID, IObservation] = OrderedDict()

    async def begin(self, request: Begin) -> Transaction:
        """Begin a transaction and report it."""
        observation = self._observer.begins(ObservedOperation(OperationKind.BEGIN, family=self._family))
        try:
            begun: Transaction = await self._behind.begin(request)
        except BaseException as error:
            observation.ends(Outcome(error))
            raise
        observation.ends(Outcome(txn_id=begun.txn_id))
        return begun

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        """Begin the transaction of a micro-batch, or find it begun, and report that."""
        operation = ObservedOperation(OperationKind.BEGIN, family=self._family, application=_shown(batch))
        observation = self._observer.begins(operation)
        try:
            begun: Transaction = await IApplicationCoordinator(self._behind).begin_batch(batch, timeout_ms)
        except BaseException as error:
            observation.ends(Outcome(error))
            raise
        observation.ends(Outcome(txn_id=begun.txn_id))
        return begun

    async def finish_batch(self, batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        """
        Record what a micro-batch consumed; the micro-batch is reported from its begin on.

        Another process may have begun it: each task of Spark has one, and the process that commits calls this.
        """
        await IApplicationCoordinator(self._behind).finish_batch(batch, txn_id, ranges)
        if txn_id not in self._batches:
            with suppress(TxnFrameworkError):  # the batch matters more than its report
                begun_ms = (await self._behind.describe(txn_id)).created_ms
                self._batches[txn_id] = self._observer.begins(
                    ObservedOperation(
                        OperationKind.BATCH,
                        txn_id=txn_id,
                        family=self._family,
                        application=_shown(batch),
                        begun_ms=begun_ms,
                    )
                )
            if len(self._batches) > BATCHES_MAX:
                self._batches.popitem(last=False)[1].ends(SUCCEEDED)

    async def end(self, request: End) -> Transaction:
        """Decide a transaction and report it."""
        with self._ending(request):
            ended: Transaction = await self._behind.end(request)
        return ended

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        """Decide a transaction together with rows of the application, and report it."""
        with self._ending(request):
            return await ICoCommitCoordinator(self._behind).end_with(request, transaction)

    async def settle(self, txn_id: TxnID) -> SweepResult:
        """Settle a transaction and report it."""
        with observing(self._observer, ObservedOperation(OperationKind.SETTLE, txn_id=txn_id, family=self._family)):
            settled: SweepResult = await self._behind.settle(txn_id)
        return settled

    @contextmanager
    def _ending(self, request: End) -> Iterator[None]:
        operation = ObservedOperation(
            OperationKind.END, txn_id=request.txn_id, family=self._family, action=request.action.value
        )
        with observing(self._observer, operation):
            try:
                yield
            except BaseException as error:
                self._batch_ends(request.txn_id, Outcome(error, request.txn_id))
                raise
            self._batch_ends(request.txn_id, Outcome(txn_id=request.txn_id))

    def _batch_ends(self, txn_id: TxnID, outcome: Outcome) -> None:
        batch = self._batches.pop(txn_id, None)
        if batch is not None:
            batch.ends(outcome)


def _shown(batch: BatchID) -> str:
    return f"{batch.application} {batch.query} {batch.version}"


def observed_coordinator(coordinator: ITransactionCoordinator, observer: IObserver | None) -> ITransactionCoordinator:
    """Return ``coordinator``, observed if ``observer`` is given."""
    return coordinator if observer is None else ITransactionCoordinator(ObservedCoordinator(coordinator, observer))
