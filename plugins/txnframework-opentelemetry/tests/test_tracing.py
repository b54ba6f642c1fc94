"""What two processes do becomes spans that messages link, and numbers, as the SDK's exporters in memory show."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import txnframework
from txnframework import Client, Message, PlannedSend
from txnframework.errors import InvalidTransactionState, TransactionConflict
from txnframework.interfaces import IApplicationCoordinator, IObserver
from txnframework.model.observations import ObservedOperation, OperationKind, Outcome
from txnframework.model.transactions import Action, BatchID, End
from txnframework.plugin import ObserverContext, Provider, hookimpl, load_plugins, options_as
from txnframework_opentelemetry import ObserverOptions, OpenTelemetryInstruments, TracingObserver, context_of

sys.path.insert(0, str(Path(__file__).parent))  # for the program of the page

from billing import bill

ORDERS = "topic://public/default/orders"
TRANSACTION = "txnframework.transaction.id"
PATIENCE_S = 120
_names = count()


class Process:
    """One process: a client with a tracer and a meter of its own."""

    def __init__(self, store: str, options: Mapping[str, object]) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        meters = MeterProvider([self._reader])
        instruments = OpenTelemetryInstruments(meters.get_meter("test"))
        self._config = {
            "metadata": {"url": store},
            "transactions": {"sweep": False},
            "observers": {"traced": options},
        }
        self._registry = load_plugins([_Traced(self, instruments)])

    def open(self) -> AbstractAsyncContextManager[Client, None]:
        return txnframework.open(self._config, registry=self._registry)

    def spans(self, kind: str) -> list[ReadableSpan]:
        return [one for one in self._exporter.get_finished_spans() if one.name.split(" ")[0] == kind]

    def span(self, kind: str) -> ReadableSpan:
        (found,) = self.spans(kind)
        return found

    def numbers(self) -> dict[tuple[str, ...], Any]:
        """Return the sums and counts that were recorded, by name and values of labels."""
        found: dict[tuple[str, ...], Any] = {}
        data = self._reader.get_metrics_data()
        for metric in [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                labels = tuple(str(value) for value in (point.attributes or {}).values())
                found[metric.name, *labels] = getattr(point, "value", getattr(point, "count", None))
        return found


class _Traced:
    def __init__(self, process: Process, instruments: OpenTelemetryInstruments) -> None:
        self._process = process
        self._instruments = instruments

    @hookimpl
    def txnframework_observers(self) -> list[Provider[ObserverContext, IObserver]]:
        async def opened(context: ObserverContext) -> TracingObserver:
            return TracingObserver(
                options_as(context.options, ObserverOptions), self._process.tracer, self._instruments
            )

        return [Provider("traced", opened, TracingObserver, options=ObserverOptions)]


@pytest.fixture
def processes() -> Callable[..., tuple[Process, Process]]:
    store = f"memory://tracing-{next(_names)}"
    return lambda **options: (Process(store, options), Process(store, options))


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


def links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_transaction_over_two_processes(processes: Callable[..., tuple[Process, Process]]) -> None:
    """Send, receipt, acknowledgment, begin, end and settling are spans, each linked to what caused it."""
    sender, receiver = processes()

    async with sender.open() as one, receiver.open() as two:
        await one.create_topic("orders")
        producer = await one.producer("orders")
        with sender.tracer.start_as_current_span("request") as request:
            async with one.transaction() as txn:
                await producer.send(b"12345", txn=txn)
        consumer = await two.consumer("orders", "billing", start="earliest")
        message = await consumer.receive()
        await consumer.ack(message)
        billed_in = await bill(message)
        assert set(message.headers) == {"traceparent"}
        parent = get_current_span(context_of(message)).get_span_context()
        await consumer.close()
    send, begin, end, settle = map(sender.span, ("send", "begin", "end", "settle"))
    receive, ack = map(receiver.span, ("receive", "ack"))
    assert (send.name, send.kind, receive.kind) == (f"send {ORDERS}", SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert send.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    assert parent.span_id == id_of(send)
    assert parent.trace_id == request.get_span_context().trace_id
    assert billed_in == f"{parent.trace_id:032x}"
    assert links(receive) == links(ack) == {id_of(send)}
    assert links(send) == links(end) == links(settle) == {id_of(begin)}
    for span in (begin, send, end, settle):
        assert attributes(span)[TRANSACTION] == str(txn.id)
    assert attributes(end)["txnframework.action"] == "commit"
    assert attributes(receive)["messaging.consumer.group.name"] == "billing"
    assert attributes(receive)["messaging.destination.name"] == ORDERS
    assert attributes(receive)["messaging.batch.message_count"] == 1
    assert attributes(receive)["messaging.message.body.size"] == 5
    assert {one.status.status_code for one in (send, begin, end, settle, receive, ack)} == {StatusCode.UNSET}


@pytest.mark.parametrize("sequence_id", [None, 1], ids=["one step", "in steps"])
async def test_what_a_handler_returns(
    processes: Callable[..., tuple[Process, Process]], sequence_id: int | None
) -> None:
    """It is sent after the handler, and the parent of its span is the span in which the handler planned it."""
    process, _ = processes()

    async with process.open() as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        await (await client.producer("orders")).send(b"order")
        invoices = await client.producer("invoices")
        async with await client.consumer("orders", "billing", start="earliest") as consumer:

            async def bill(order: Message) -> PlannedSend:
                consumer.stop()
                with process.tracer.start_as_current_span("bill", context=context_of(order)):
                    return invoices.outgoing(b"invoice", sequence_id=sequence_id)

            await consumer.run(bill)
        async with await client.reader("invoices") as reader:
            (invoice,) = [message async for message in reader]
    order, sent = process.spans("send")
    bill_span = process.span("bill")
    assert bill_span.parent is not None
    assert bill_span.parent.span_id == id_of(order)
    assert sent.parent is not None
    assert sent.parent.span_id == id_of(bill_span)
    assert get_current_span(context_of(invoice)).get_span_context().span_id == id_of(sent)
    assert id_of(order) in links(process.span("ack"))


async def test_a_step_that_is_refused(processes: Callable[..., tuple[Process, Process]]) -> None:
    """Spans and numbers show one transaction in the usual steps, and no failure of the one step."""
    process, _ = processes()

    async with process.open() as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        orders, invoices = await client.producer("orders"), await client.producer("invoices")
        for value in (b"1", b"2"):
            await orders.send(value)
        async with await client.consumer("orders", "billing", start="earliest") as consumer:
            first, second = await consumer.receive(), await consumer.receive()
            async with client.transaction() as holder:
                await consumer.ack(first, txn=holder)
                await client.transact(invoices.outgoing(b"i"), consumer.acknowledging(second))
        async with await client.reader("invoices") as reader:
            (invoice,) = [message async for message in reader]
    (sent,) = (one for one in process.spans("send") if one.name.endswith("/invoices"))
    assert get_current_span(context_of(invoice)).get_span_context().span_id == id_of(sent)
    kinds = {kind: process.spans(kind) for kind in ("begin", "send", "ack", "end")}
    assert {kind: len(some) for kind, some in kinds.items()} == {"begin": 2, "send": 3, "ack": 2, "end": 2}
    assert {one.status.status_code for some in kinds.values() for one in some} == {StatusCode.UNSET}
    results = {labels[-1] for labels in process.numbers() if labels[0] == "txnframework_end_seconds"}
    assert results <= {"ok"}


async def test_transactions_that_share_a_step(processes: Callable[..., tuple[Process, Process]]) -> None:
    """The spans of each of them are children of the span in which its caller asked for it, not of another one's."""
    process, _ = processes()

    async with process.open() as client:
        await client.create_topic("invoices")
        invoices = await client.producer("invoices")

        async def transact(number: int) -> int:
            with process.tracer.start_as_current_span(f"request {number}") as request:
                await client.transact(invoices.outgoing(b"%d" % number))
                return request.get_span_context().span_id

        requests = await asyncio.gather(*map(transact, range(5)))
    for kind in ("begin", "send", "end"):
        parents = [one.parent.span_id for one in process.spans(kind) if one.parent is not None]
        assert sorted(parents) == sorted(requests), kind


async def test_errors(processes: Callable[..., tuple[Process, Process]]) -> None:
    """The span of a call that fails names the error."""
    process, _ = processes()

    async with process.open() as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"x")
        consumer = await client.consumer("orders", "billing", start="earliest")
        message = await consumer.receive()
        async with client.transaction() as first:
            await consumer.ack(message, txn=first)
            second = client.transaction()
            await second.begin()
            with pytest.raises(TransactionConflict):
                await consumer.ack(message, txn=second)
            await second.abort()
        with pytest.raises(InvalidTransactionState):
            await (await client.host.coordinator()).end(End(first.id, Action.ABORT))
        await consumer.close()
    refused = process.spans("ack")[1]
    assert attributes(refused)["error.type"] == "TransactionConflict"
    assert attributes(refused)[TRANSACTION] == str(second.id)
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(process.spans("end")[-1])["error.type"] == "InvalidTransactionState"


async def test_headers(processes: Callable[..., tuple[Process, Process]]) -> None:
    """A header of the program wins, and a message that tracing would make too large is sent without."""
    process, _ = processes()
    own = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async with process.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send(b"x", headers={"traceparent": own, "a": b"b"})
        message = await consumer.receive()
        assert dict(message.headers) == {"traceparent": own, "a": b"b"}
        assert links(process.span("receive")) == {0xB7AD6B7169203331}
        await producer.send(b"x" * (client.host.config.client.message_bytes_max - 100))
        assert dict((await consumer.receive()).headers) == {}
        await producer.send(b"x", headers={"traceparent": b"\xff not valid"})
        await consumer.receive()
        assert links(process.spans("receive")[-1]) == set()
        await producer.send_many([b"1", b"2"], headers={"a": b"b"})
        for one in await consumer.receive_many(messages_max=2):
            assert set(one.headers) == {"a", "traceparent"}
        await consumer.close()


async def test_numbers(processes: Callable[..., tuple[Process, Process]]) -> None:
    """The metrics of the core go to a meter, with labels as attributes."""
    process, _ = processes(traces=False)

    async with process.open() as client:
        await client.create_topic("orders")
        async with client.transaction() as txn:
            await (await client.producer("orders")).send_many([b"12", b"345"], txn=txn)
        consumer = await client.consumer("orders", "billing", start="earliest")
        messages = [await consumer.receive() for _ in range(2)]
        await consumer.ack(*messages)
        assert [dict(one.headers) for one in messages] == [{}, {}]
        await consumer.close()
    numbers = process.numbers()
    assert numbers["txnframework_sent_messages", ORDERS] == 2
    assert numbers["txnframework_sent_bytes", ORDERS] == 5
    assert numbers["txnframework_received_messages", ORDERS, "billing"] == 2
    assert numbers["txnframework_received_bytes", ORDERS, "billing"] == 5
    assert numbers["txnframework_acknowledged_messages", ORDERS, "billing"] == 2
    assert numbers["txnframework_end_seconds", "metadata", "commit", "ok"] == 1
    assert numbers["txnframework_header_updates", "ok"] == 1
    assert process.spans("send") == []


@pytest.mark.parametrize("action", Action)
async def test_micro_batches(processes: Callable[..., tuple[Process, Process]], action: Action) -> None:
    """A batch is one span from its begin to its end, in the process that ends it, for any number of begins."""
    process, other = processes()

    async with process.open() as client, other.open() as tasks:
        coordinator = IApplicationCoordinator(await client.host.coordinator())
        await coordinator.claim("report", "run")
        batch = BatchID("report", "query", "run", 7)
        task = IApplicationCoordinator(await tasks.host.coordinator())
        begun = await task.begin_batch(batch, 60_000)
        assert (await coordinator.begin_batch(batch, 60_000)).txn_id == begun.txn_id
        for _ in range(2):
            await coordinator.finish_batch(batch, begun.txn_id, ())
        assert process.spans("batch") == []
        await coordinator.end(End(begun.txn_id, action, batch=batch))
        # As Spark does with a batch that failed.
        with contextlib.suppress(InvalidTransactionState):
            await task.end(End(begun.txn_id, Action.ABORT, batch=batch))
    assert other.spans("batch") == []
    batch_span = process.span("batch")
    assert batch_span.start_time == begun.created_ms * 1_000_000
    assert attributes(batch_span)["txnframework.batch"] == "report query 7"
    assert attributes(batch_span)[TRANSACTION] == str(begun.txn_id)
    assert attributes(batch_span)["txnframework.action"] == action.value
    end = process.span("end")
    assert batch_span.start_time is not None
    assert end.start_time is not None
    assert batch_span.start_time <= end.start_time


def test_memory_is_bounded(processes: Callable[..., tuple[Process, Process]]) -> None:
    """Of many transactions that never end, only the last ones are remembered."""
    process, _ = processes()
    observer = TracingObserver(ObserverOptions(transactions_max=2, metrics=False), process.tracer)
    ids = [txnframework.TxnID(0, number) for number in range(3)]
    for txn_id in ids:
        observer.begins(ObservedOperation(OperationKind.BEGIN)).ends(Outcome(txn_id=txn_id))
    for txn_id in ids:
        observer.begins(ObservedOperation(OperationKind.END, txn_id=txn_id)).ends(Outcome())
    assert [len(one.links) for one in process.spans("end")] == [0, 1, 1]


async def test_the_installed_observer() -> None:
    """Its table in the configuration enables it; without an SDK it records nothing, and costs no error."""
    config = {"metadata": {"url": f"memory://tracing-{next(_names)}"}, "observers": {"opentelemetry": {}}}
    async with txnframework.open(config) as client:
        await client.create_topic("orders")
        async with client.transaction() as txn:
            await (await client.producer("orders")).send(b"x", txn=txn)
        consumer = await client.consumer("orders", "billing", start="earliest")
        message = await consumer.receive()
        assert dict(message.headers) == {}
        await consumer.ack(message)
        await consumer.close()
