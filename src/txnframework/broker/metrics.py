"""What a host measures, if it was opened with metrics: operations, and the stores behind proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeVar

from zope.interface import implementer

from txnframework.errors import Conflict, NotFound, OutcomeUnknown, TransactionConflict, VersionMismatch
from txnframework.instruments import Counter, Histogram, Instruments
from txnframework.interfaces import IDatabaseTransaction, IMetadataStore, IObservation, IObserver, IPendingAckStore
from txnframework.model.acks import AckRequest
from txnframework.model.metadata import IndexRange, Put, PutSequential, RecordPage
from txnframework.model.observations import ObservedOperation, OperationKind, Outcome
from txnframework.model.paths import is_header, is_operation
from txnframework.model.steps import Applied, Step
from txnframework.runtime.proxy import ForwardingProxy

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


def header_cas(metrics: Instruments) -> Counter:
    """Return the counter of decisions: the store counts attempted writes, the coordinator forbidden decisions."""
    return metrics.counter(
        "txnframework_header_updates_total",
        "Compare-and-sets of a transaction's header: ok, conflict (another one came first), reject (what the header"
        " says forbids it, so nothing was written), unknown (the reply was lost), failed.",
        ("result",),
    )


@implementer(IObservation)
class _Counting:
    """An operation whose messages are counted when it succeeds."""

    headers: tuple[tuple[str, bytes], ...] = ()

    def __init__(self, succeeded: Callable[[], None]) -> None:
        self._succeeded = succeeded

    def ends(self, outcome: Outcome) -> None:
        """Count the messages unless the operation failed."""
        if outcome.error is None:
            self._succeeded()


@implementer(IObservation)
class _Ending:
    """The decision of a transaction, which is measured."""

    headers: tuple[tuple[str, bytes], ...] = ()

    def __init__(self, operation: ObservedOperation, times: Histogram, decisions: Counter) -> None:
        self._operation = operation
        self._times = times
        self._decisions = decisions
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    def ends(self, outcome: Outcome) -> None:
        """Measure the time, and count a decision that is forbidden."""
        if outcome.is_superseded:
            return
        result = OK if outcome.error is None else result_of(outcome.error, REJECT)
        if result == REJECT:
            self._decisions.labels(REJECT).inc()
        took_s = self._clock() - self._began_s
        self._times.labels(self._operation.family, self._operation.action, result).observe(took_s)


@implementer(IObserver)
class MetricsObserver:
    """Counts messages and bytes of sends, receipts and acknowledgments, and measures the time to end transactions."""

    def __init__(self, metrics: Instruments) -> None:
        self.instruments: Instruments | None = metrics
        subscribed = ("topic", "subscription")
        self._sent = (
            metrics.counter("txnframework_sent_messages_total", "Messages that were sent and stored.", ("topic",)),
            metrics.counter("txnframework_sent_bytes_total", "Size of the values of sent messages.", ("topic",)),
        )
        self._received = (
            metrics.counter("txnframework_received_messages_total", "Messages that were received.", subscribed),
            metrics.counter("txnframework_received_bytes_total", "Size of received values.", subscribed),
        )
        self._acknowledged = metrics.counter(
            "txnframework_acknowledged_messages_total",
            "Messages that were acknowledged individually, also in transactions that abort later.",
            subscribed,
        )
        self._ended = metrics.histogram(
            "txnframework_end_seconds",
            "Time until a transaction was decided, by result: ok, reject (it ended otherwise, is not known or is"
            " another's), unknown (the reply was lost), failed.",
            ("family", "action", "result"),
        )
        self._decisions = header_cas(metrics)
        info = metrics.gauge("txnframework_process_build_info", "Always 1; the label names the version.", ("version",))
        info.labels(_version()).set(1)

    def begins(self, operation: ObservedOperation) -> IObservation:
        """Count the operation when it ends."""
        if operation.kind is OperationKind.END:
            return _Ending(operation, self._ended, self._decisions)
        return _Counting(partial(self._count, operation))

    def _count(self, operation: ObservedOperation) -> None:
        if operation.kind is OperationKind.SEND:
            numbers, labels = self._sent, [operation.topic]
        elif operation.kind is OperationKind.RECEIVE:
            numbers, labels = self._received, [operation.topic, operation.subscription]
        elif operation.kind is OperationKind.ACK:
            self._acknowledged.labels(operation.topic, operation.subscription).inc(operation.messages)
            return
        else:
            return
        numbers[0].labels(*labels).inc(operation.messages)
        numbers[1].labels(*labels).inc(operation.value_bytes)


class MeasuredMetadataStore(ForwardingProxy):
    """Counts writes that belong to transactions, and measures the time of index queries."""

    _behind: IMetadataStore

    def __init__(self, behind: IMetadataStore, metrics: Instruments) -> None:
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

    async def apply(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """Make a step and count its writes; that of an intent is one of them."""
        intended = () if step.intent is None else (PutSequential(step.intent.prefix, b""),)
        rows = () if transaction is None else (transaction,)
        return await self._counted((*step.puts, *intended), self._behind.apply(step, *rows))

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
            # A step may also be refused because of a cursor: then the header is decided by another write.
            if headers and not (isinstance(error, VersionMismatch) and not is_header(error.key)):
                self._decisions.labels(result_of(error, CONFLICT)).inc(headers)
            raise
        if headers:
            self._decisions.labels(OK).inc(headers)
        operations = sum(is_operation(one.prefix if isinstance(one, PutSequential) else one.key) for one in writes)
        if operations:
            self._operations.inc(operations)
        return answer


def measured_store(store: IMetadataStore, metrics: Instruments | None) -> IMetadataStore:
    """Return ``store``, measured if ``metrics`` is given."""
    return store if metrics is None else IMetadataStore(MeasuredMetadataStore(store, metrics))


class MeasuredPendingAcks(ForwardingProxy):
    """Counts conflicts between acknowledgments."""

    _behind: IPendingAckStore

    def __init__(self, behind: IPendingAckStore, metrics: Instruments, topic: str, subscription: str) -> None:
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
    store: IPendingAckStore, metrics: Instruments | None, topic: str, subscription: str
) -> IPendingAckStore:
    """Return ``store``, measured if ``metrics`` is given."""
    if metrics is None:
        return store
    return IPendingAckStore(MeasuredPendingAcks(store, metrics, topic, subscription))


def _version() -> str:
    try:
        return version("txnframework")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
