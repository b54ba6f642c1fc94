"""The observers of a host: those that its configuration names, and the one that counts for metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from typing import Any

import msgspec
from zope.interface import implementer

from txnframework.config import Config
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.instruments import Instruments
from txnframework.interfaces import (
    IApplicationCoordinator,
    IDatabaseTransaction,
    IJointCoordinator,
    IObservation,
    IObserver,
    ITransactionCoordinator,
)
from txnframework.model.ids import TxnID
from txnframework.model.observations import SUCCEEDED, ObservedOperation, OperationKind, Outcome
from txnframework.model.transactions import Action, BatchID, Begin, End, State, SweepResult, Transaction
from txnframework.plugin import ObserverContext, PluginRegistry
from txnframework.runtime.proxy import ForwardingProxy


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


class Superseded(Exception):
    """Nothing was done in an observed block, and the same operations follow in another way."""


@contextmanager
def observing(
    observer: IObserver, operation: ObservedOperation, context: Context | None = None
) -> Iterator[IObservation]:
    """
    Report an operation, and the end of the block as its end.

    :param context: that of the caller who planned the operation; default: the present one.
    """
    observation = observer.begins(operation) if context is None else context.run(observer.begins, operation)
    try:
        yield observation
    except BaseException as error:
        observation.ends(Outcome(error, is_superseded=isinstance(error, Superseded)))
        raise
    observation.ends(SUCCEEDED)


class ObservedCoordinator(ForwardingProxy):
    """Reports what callers of this process do with transactions."""

    _behind: Any

    def __init__(self, behind: ITransactionCoordinator, observer: IObserver) -> None:
        super().__init__(behind)
        self._observer = observer
        self._family = behind.family

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

    async def end(self, request: End) -> Transaction:
        """Decide a transaction and report it, and the micro-batch that it decides."""
        async with self._ending(request):
            ended: Transaction = await self._behind.end(request)
        return ended

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        """Decide a transaction together with rows of the application, and report it."""
        async with self._ending(request):
            return await IJointCoordinator(self._behind).end_with(request, transaction)

    async def settle(self, txn_id: TxnID) -> SweepResult:
        """Settle a transaction and report it."""
        with observing(self._observer, ObservedOperation(OperationKind.SETTLE, txn_id=txn_id, family=self._family)):
            settled: SweepResult = await self._behind.settle(txn_id)
        return settled

    @asynccontextmanager
    async def _ending(self, request: End) -> AsyncIterator[None]:
        operation = ObservedOperation(
            OperationKind.END, txn_id=request.txn_id, family=self._family, action=request.action.value
        )
        begun = None if request.batch is None else await self._begun(request)
        with observing(self._observer, operation):
            if begun is None or request.batch is None:
                yield
                return
            # Another process may have begun it: each task of Spark has one.
            batch = msgspec.structs.replace(
                operation,
                kind=OperationKind.BATCH,
                application=_shown(request.batch),
                begun_ms=begun.created_ms,
            )
            with observing(self._observer, batch):
                yield

    async def _begun(self, request: End) -> Transaction | None:
        """Return the transaction of a micro-batch that the request decides; None if it was aborted before."""
        try:
            found: Transaction = await self._behind.describe(request.txn_id)
        except TxnFrameworkError:
            return None  # the batch matters more than its report
        # Spark aborts a batch again that failed, whose transaction was aborted by the failure.
        return found if request.action is Action.COMMIT or found.state is State.OPEN else None


def _shown(batch: BatchID) -> str:
    return f"{batch.application} {batch.query} {batch.version}"


def observed_coordinator(coordinator: ITransactionCoordinator, observer: IObserver | None) -> ITransactionCoordinator:
    """Return ``coordinator``, observed if ``observer`` is given."""
    return coordinator if observer is None else ITransactionCoordinator(ObservedCoordinator(coordinator, observer))
