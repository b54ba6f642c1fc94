"""The observer: a span for each operation, linked to the senders of messages and to the begin of the transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, get_tracer
from opentelemetry.util.types import AttributeValue
from zope.interface import implementer

from txnframework.instruments import Instruments
from txnframework.interfaces import IObservation, IObserver
from txnframework.model.ids import TxnID
from txnframework.model.observations import ObservedOperation, OperationKind, Outcome
from txnframework.plugin import ObserverContext, options_as
from txnframework_opentelemetry._contexts import headers_of, senders_of
from txnframework_opentelemetry._instruments import NAME, OpenTelemetryInstruments
from txnframework_opentelemetry._options import ObserverOptions

KINDS: Final = {OperationKind.SEND: SpanKind.PRODUCER, OperationKind.RECEIVE: SpanKind.CONSUMER}
TYPES: Final = {OperationKind.SEND: "send", OperationKind.RECEIVE: "receive", OperationKind.ACK: "settle"}
"""The types that OpenTelemetry's conventions for messaging have for these operations."""
NS_PER_MS: Final = 1_000_000
TRANSACTION: Final = "txnframework.transaction.id"


@implementer(IObservation)
class NoSpan:
    """An operation that is not traced."""

    headers: tuple[tuple[str, bytes], ...] = ()

    def ends(self, outcome: Outcome) -> None:
        """Do nothing."""


@implementer(IObservation)
class SpanObservation:
    """An operation that is a span."""

    def __init__(self, observer: TracingObserver, span: Span, headers: tuple[tuple[str, bytes], ...]) -> None:
        self._observer = observer
        self._span = span
        self.headers = headers

    def ends(self, outcome: Outcome) -> None:
        """End the span, with the error if there is one; a span that never ends is not exported."""
        if outcome.is_superseded:
            return
        if outcome.txn_id is not None:
            self._span.set_attribute(TRANSACTION, str(outcome.txn_id))
            self._observer.note_begin(outcome.txn_id, self._span.get_span_context())
        if outcome.error is not None:
            self._span.set_attribute("error.type", type(outcome.error).__qualname__)
            self._span.set_status(Status(StatusCode.ERROR, " ".join(str(outcome.error).split())))
        self._span.end()


@implementer(IObserver)
class TracingObserver:
    """
    Makes spans of operations, whose parent is the current span of the caller.

    ``tracer``: by default that of the global provider.
    """

    def __init__(
        self, options: ObserverOptions, tracer: Tracer | None = None, instruments: Instruments | None = None
    ) -> None:
        self.instruments: Instruments | None = None
        if options.metrics:
            self.instruments = OpenTelemetryInstruments() if instruments is None else instruments
        self._options = options
        self._tracer = get_tracer(NAME) if tracer is None else tracer
        self._begins: OrderedDict[TxnID, SpanContext] = OrderedDict()

    def begins(self, operation: ObservedOperation) -> IObservation:
        """Start a span."""
        if not self._options.traces:
            return NoSpan()
        linked = senders_of(operation.headers, self._options.links_max)
        begun = None if operation.txn_id is None else self._begins.get(operation.txn_id)
        span = self._tracer.start_span(
            f"{operation.kind.value} {operation.topic}".rstrip(),
            kind=KINDS.get(operation.kind, SpanKind.INTERNAL),
            attributes=dict(_attributes(operation)),
            links=[Link(one) for one in (*linked, *([] if begun is None else [begun]))],
            start_time=None if operation.begun_ms is None else operation.begun_ms * NS_PER_MS,
        )
        carries = operation.kind is OperationKind.SEND and self._options.propagate
        return SpanObservation(self, span, headers_of(span) if carries else ())

    def note_begin(self, txn_id: TxnID, span: SpanContext) -> None:
        """Remember the span that began a transaction; the later operations of this process are linked to it."""
        if txn_id not in self._begins and span.is_valid:
            self._begins[txn_id] = span
            if len(self._begins) > self._options.transactions_max:
                self._begins.popitem(last=False)


def _attributes(operation: ObservedOperation) -> Iterable[tuple[str, AttributeValue]]:
    """Yield the attributes that are known; names of ``messaging`` are those of OpenTelemetry's conventions."""
    yield "messaging.system", NAME
    yield "messaging.operation.name", operation.kind.value
    found: dict[str, AttributeValue] = {
        "messaging.operation.type": TYPES.get(operation.kind, ""),
        "messaging.destination.name": operation.topic,
        "messaging.consumer.group.name": operation.subscription,
        "messaging.batch.message_count": operation.messages,
        "messaging.message.body.size": operation.value_bytes,
        TRANSACTION: "" if operation.txn_id is None else str(operation.txn_id),
        "txnframework.family": operation.family,
        "txnframework.action": operation.action,
        "txnframework.batch": operation.application,
    }
    yield from ((name, value) for name, value in found.items() if value)


async def open_observer(context: ObserverContext) -> TracingObserver:
    """Return the observer that the configuration describes."""
    return TracingObserver(options_as(context.options, ObserverOptions))
