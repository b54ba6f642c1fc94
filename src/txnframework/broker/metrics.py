"""Proxies that measure the roles of a host, used if it was opened with ``Metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from txnframework.errors import Conflict, NotFound, OutcomeUnknown, TransactionConflict
from txnframework.interfaces import (
    IAtomicBatchStore,
    ICoCommitCoordinator,
    IDatabaseTransaction,
    IMetadataStore,
    IPendingAckStore,
    ITransactionCoordinator,
)
from txnframework.model.acks import AckRequest
from txnframework.model.metadata import Batch, IndexRange, Key, Put, PutSequential, Record, RecordPage
from txnframework.model.paths import is_header, is_operation
from txnframework.model.transactions import End, Transaction
from txnframework.runtime.proxy import ForwardingProxy

if TYPE_CHECKING:
    from prometheus_client import Counter

    from txnframework.metrics import Metrics


OK: Final = "ok"
CONFLICT: Final = "conflict"
REJECT: Final = "reject"
UNKNOWN: Final = "unknown"
FAILED: Final = "failed"

T = TypeVar("T")


def result_of(error: BaseException, forbidden: str) -> str:
    """Return the result label of ``error``; ``forbidden`` is the label for a call that the state forbids."""
    if isinstance(error, Conflict | NotFound):
        return forbidden
    # A cancelled call may have been applied, like a call whose reply was lost.
    return FAILED if isinstance(error, Exception) and not isinstance(error, OutcomeUnknown) else UNKNOWN


def header_cas(metrics: Metrics) -> Counter:
    """Return the counter of decisions: the store counts attempted writes, the coordinator forbidden decisions."""
    return metrics.counter(
        "txnframework_header_updates_total",
        "Compare-and-sets of a transaction's header: ok, conflict (another one came first), reject (what the header"
        " says forbids it, so nothing was written), unknown (the reply was lost), failed.",
        ("result",),
    )


class MeasuredCoordinator(ForwardingProxy):
    """Measures the time to end transactions."""

    _behind: ITransactionCoordinator

    def __init__(self, behind: ITransactionCoordinator, metrics: Metrics) -> None:
        super().__init__(behind)
        self._ended = metrics.histogram(
            "txnframework_end_seconds",
            "Time until a transaction was decided, by result: ok, reject (it ended otherwise, is not known or is"
            " another's), unknown (the reply was lost), failed.",
            ("family", "action", "result"),
        )
        self._decisions = header_cas(metrics)
        self._family = behind.family

    async def end(self, request: End) -> Transaction:
        """Decide a transaction and measure the time."""
        return await self._measured(request, self._behind.end(request))

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        """Decide a transaction together with rows of the application, and measure the time."""
        behind = ICoCommitCoordinator(self._behind)
        return await self._measured(request, behind.end_with(request, transaction))

    async def _measured(self, request: End, deciding: Awaitable[Transaction]) -> Transaction:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        result = OK
        try:
            return await deciding
        except BaseException as error:
            result = result_of(error, REJECT)
            if result == REJECT:
                self._decisions.labels(REJECT).inc()
            raise
        finally:
            self._ended.labels(self._family, request.action.value, result).observe(clock() - began_s)


def measured_coordinator(coordinator: ITransactionCoordinator, metrics: Metrics | None) -> ITransactionCoordinator:
    """Return ``coordinator``, measured if ``metrics`` is given."""
    return coordinator if metrics is None else ITransactionCoordinator(MeasuredCoordinator(coordinator, metrics))


class MeasuredMetadataStore(ForwardingProxy):
    """Counts writes that belong to transactions, and measures the time of index queries."""

    _behind: IAtomicBatchStore

    def __init__(self, behind: IMetadataStore, metrics: Metrics) -> None:
        super().__init__(behind)
        self._operations = metrics.counter(
            "txnframework_operation_records_written_total", "Operation records of transactions that were written."
        )
        self._decisions = header_cas(metrics)
        self._queries = metrics.histogram(
            "txnframework_index_query_seconds", "Time until a page of a secondary index was there."
        )

    async def put(self, write: Put) -> int:
        """Write a record and count it."""
        return await self._counted((write,), self._behind.put(write))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number and count it."""
        return await self._counted((write,), self._behind.put_sequential(write))

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply a batch and count its writes."""
        return await self._counted(batch.puts, self._behind.apply(batch))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of an index and measure the time."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        page = await self._behind.scan_index(entries, items_max)
        self._queries.observe(clock() - began_s)
        return page

    async def _counted(self, writes: Iterable[Put | PutSequential], call: Awaitable[T]) -> T:
        headers = sum(isinstance(one, Put) and isinstance(one.expected, int) and is_header(one.key) for one in writes)
        try:
            answer = await call
        except BaseException as error:
            if headers:
                self._decisions.labels(result_of(error, CONFLICT)).inc(headers)
            raise
        if headers:
            self._decisions.labels(OK).inc(headers)
        operations = sum(is_operation(one.prefix if isinstance(one, PutSequential) else one.key) for one in writes)
        if operations:
            self._operations.inc(operations)
        return answer


def measured_store(store: IMetadataStore, metrics: Metrics | None) -> IMetadataStore:
    """Return ``store``, measured if ``metrics`` is given."""
    return store if metrics is None else IMetadataStore(MeasuredMetadataStore(store, metrics))


class MeasuredPendingAcks(ForwardingProxy):
    """Counts conflicts between acknowledgments."""

    _behind: IPendingAckStore

    def __init__(self, behind: IPendingAckStore, metrics: Metrics, topic: str, subscription: str) -> None:
        super().__init__(behind)
        self._conflicts = metrics.counter(
            "txnframework_ack_conflicts_total",
            "Acknowledgments that were refused because another transaction holds the message or this one has ended.",
            ("topic", "subscription"),
        ).labels(topic, subscription)

    async def add(self, request: AckRequest) -> None:
        """Acknowledge in a transaction and count conflicts."""
        try:
            await self._behind.add(request)
        except TransactionConflict:
            self._conflicts.inc()
            raise


def measured_pending_acks(
    store: IPendingAckStore, metrics: Metrics | None, topic: str, subscription: str
) -> IPendingAckStore:
    """Return ``store``, measured if ``metrics`` is given."""
    if metrics is None:
        return store
    return IPendingAckStore(MeasuredPendingAcks(store, metrics, topic, subscription))
