"""Handlers: workers run a handler for every order, and orders that always fail become dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from msgspec import Meta

from txnframework.client import DeadLetter, Message, PlannedSend, Transaction
from txnframework.errors import InvalidTransactionState, TxnFrameworkError
from txnframework.model.transactions import State
from txnframework_simulation import history
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import AckedMessage, Call, Consume, Handle, History, PendingCall, SeenMessage
from txnframework_simulation.workloads.chain import ARROW, BILLING
from txnframework_simulation.workloads.oracles import drained, drained_subscription, sends_of
from txnframework_simulation.workloads.recorded_client import RecordedClient, RecordedConsumer, RecordedProducer
from txnframework_simulation.workloads.workload import NAMESPACE, ActorContext, Options, Subscribed, Workload

POISON = "?"
"""The end of the value of an order whose handler always fails."""
INVARIANT = "every order is handled once or becomes a dead letter"
COUNTS = "delivery counts survive"
ORDERS, INVOICES, LETTERS = (f"{NAMESPACE}/{name}" for name in ("orders", "invoices", "letters"))

BATCH_MAX = 3
WORK_MS_MAX = 150
RUN_MS_MIN, RUN_MS_MAX = 500, 6_000
FINISH_MS_MAX, FINISH_STEP_MS = 120_000, 1_000
TIMEOUTS_MS = (2_000, 10_000)


class HandlersOptions(Options, frozen=True, kw_only=True):
    """
    The options of the workload.

    ``type``: the subscription type. ``poison``: the share of orders whose handler always fails. ``failures``: the share
    of other orders whose handler fails at their first delivery. ``cancelled``: the share of runs that are cancelled
    instead of stopped. ``redeliveries_max`` is that of the dead-letter rule. It must be higher than the number of
    deliveries of one order that faults make fail. ``begun_by_run``: the share of runs without the option
    ``transaction``, so that transactions begin early. ``returned``: the share of runs whose handler returns what is to
    be sent, so that a call of it may be one step.
    """

    segments: Annotated[int, Meta(ge=1)] = 2
    type: str = "shared"
    poison: Annotated[float, Meta(ge=0, le=1)] = 0.15
    failures: Annotated[float, Meta(ge=0, le=1)] = 0.1
    cancelled: Annotated[float, Meta(ge=0, le=1)] = 0.2
    redeliveries_max: Annotated[int, Meta(ge=0)] = 8
    redelivery_delay_ms_max: Annotated[int, Meta(ge=0)] = 500
    begun_by_run: Annotated[float, Meta(ge=0, le=1)] = 0
    returned: Annotated[float, Meta(ge=0, le=1)] = 0
    durable_counts: bool = False
    """
    Whether a consumer that joins later never gets a lower delivery count.

    A process that has lost its lease counts in memory until it learns of the loss. So this holds only without such
    faults.
    """


class Handlers(Workload[HandlersOptions]):
    """
    Clients send orders. Workers run a handler, which writes an invoice for each order.

    In the end each order has exactly one invoice, or is a dead letter exactly once. Only orders whose handler always
    fails become dead letters. With ``durable_counts``, a consumer that joins later never gets a lower delivery count.
    """

    options_type = HandlersOptions

    @property
    def topics(self) -> dict[str, int]:
        """The topics of orders, invoices and dead letters."""
        return {ORDERS: self.options.segments, INVOICES: 1, LETTERS: 1}

    @property
    def subscriptions(self) -> tuple[Subscribed, ...]:
        """The subscription of the workers."""
        return (Subscribed(ORDERS, BILLING, self.options.type),)

    @property
    def types(self) -> dict[str, str]:
        """The subscription type of the workers."""
        return {"type": self.options.type}

    async def run(self, context: ActorContext) -> None:
        """Send orders and handle them."""
        worker = Worker(context, self.options)
        await context.repeat({worker.order: 2, worker.handle: 3})

    async def finish(self, context: ActorContext) -> None:
        """Handle all orders that are left."""
        await Worker(context, self.options).handle_all()

    def violations(self, history: History) -> list[Violation]:
        """Compare orders, invoices and dead letters, and the delivery counts of each order."""
        found = list(_lower_counts(history.calls())) if self.options.durable_counts else []
        orders, invoices, letters = (drained(history, topic) for topic in (ORDERS, INVOICES, LETTERS))
        waiting = drained_subscription(history, ORDERS, BILLING)
        if orders is None or invoices is None or letters is None or waiting is None:
            return found
        billed = Counter(value.partition(ARROW)[0] for value in invoices if ARROW in value)
        sentences = [*_sentences(orders, billed, Counter(letters), set(waiting))]
        return found + [Violation(INVARIANT, f"order {one} {what}", sends_of(history, one)) for one, what in sentences]


def _sentences(
    orders: list[str], billed: Counter[str], letters: Counter[str], waiting: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield each order with what is wrong about it."""
    for one in orders:
        if one in waiting:
            yield one, "is still delivered"
        elif billed[one] + letters[one] != 1:
            yield one, f"has {billed[one]} invoices and is {letters[one]} times a dead letter"
        elif letters[one] and not one.endswith(POISON):
            yield one, "is a dead letter, although its handler does not always fail"
        elif billed[one] and one.endswith(POISON):
            yield one, "has an invoice, although its handler always fails"
    there = set(orders)
    yield from ((one, "has an invoice and cannot be read") for one in billed if one not in there)


def _lower_counts(calls: list[Call]) -> Iterator[Violation]:
    """
    Find orders that a consumer got with a lower count than an earlier consumer did.

    Only a consumer that joined after the earlier delivery is compared. The first delivery is not stored, so it is left
    out.
    """
    joined = {call.operation.consumer: call.began for call in calls if isinstance(call.operation, Consume)}
    highest: dict[history.MessagePosition, list[Call]] = {}
    for call in sorted(calls, key=lambda one: one.began):
        if not isinstance(call.operation, Handle):
            continue
        seen = call.operation.seen
        earlier = highest.setdefault(seen.place, [])
        for before in earlier:
            assert isinstance(before.operation, Handle)
            count = before.operation.seen.redelivery_count
            if before.began < joined[call.operation.consumer] and seen.redelivery_count < count:
                sentence = (
                    f"order {seen.value} was delivered with count {count}, and later with {seen.redelivery_count}"
                )
                yield Violation(COUNTS, sentence, (*before.events, *call.events))
                break
        earlier.append(call)


@dataclass
class Work:
    """The transaction of one call of a handler, and its acknowledgments in progress."""

    txn: Transaction
    acks: list[PendingCall] = field(default_factory=list)
    end: PendingCall | None = None
    """The commit or abort by ``run``; its outcome is known from the state of the transaction."""
    commits: bool = False

    def note_outcome(self, *, is_last: bool) -> bool:
        """
        Record what ``run`` has done in the meantime; return False if the transaction has not ended.

        With ``is_last`` the outcome of an open transaction is unknown.
        """
        state, end = self.txn.state, self.end
        if end is None or (state is State.OPEN and not is_last):
            return False
        for ack in self.acks:
            if self.commits and state is State.COMMITTED:
                ack.ok()
            else:
                ack.unknown("the transaction was not committed")
        if state is (State.COMMITTED if self.commits else State.ABORTED):
            end.ok()
        elif state is State.OPEN:
            end.unknown("the run has ended")
        else:
            end.raised(InvalidTransactionState(self.txn.id, state, "the end of a call of the handler"))
        return True


class Refused(ValueError):
    """The handler fails."""


class Worker:
    """One actor."""

    def __init__(self, context: ActorContext, options: HandlersOptions) -> None:
        self._context = context
        self._options = options
        self._recorded: RecordedClient = context.recorded
        # Calls of handlers whose transactions ``run`` ends.
        self._under_way: list[Work] = []

    async def order(self) -> None:
        """Send a few orders."""
        producer = await self._recorded.producer(ORDERS)
        for _ in range(self._context.chance.randint(1, 3)):
            poison = POISON if self._context.likely(self._options.poison) else ""
            await producer.send(f"{self._recorded.unique()}{poison}", key=f"k{self._context.chance.randrange(4)}")

    async def handle(self) -> None:
        """Join, run a handler for some time, and leave."""
        consumer = await self._consumer()
        try:
            running = await self._begin(consumer)
            await self._wait(running, self._context.chance.randint(RUN_MS_MIN, RUN_MS_MAX))
            if self._context.likely(self._options.cancelled):
                running.cancel()
            consumer.consumer.stop()
            await asyncio.wait({running})
            self._note_outcomes(is_last=True)
            if not running.cancelled():
                running.result()
        finally:
            await consumer.close()

    async def handle_all(self) -> None:
        """Run a handler until no order is left, or for a limited time."""
        consumer = await self._consumer()
        running = await self._begin(consumer)
        for _ in range(FINISH_MS_MAX // FINISH_STEP_MS):
            await self._wait(running, FINISH_STEP_MS)
            if running.done() or not await self._recorded.client.peek(ORDERS, BILLING, 1):
                break
        consumer.consumer.stop()
        await running
        self._note_outcomes(is_last=True)
        await consumer.close()

    async def _consumer(self) -> RecordedConsumer:
        rule = DeadLetter(self._options.redeliveries_max, LETTERS)
        return await self._recorded.consumer(ORDERS, BILLING, type=self._options.type, dead_letter=rule)

    async def _begin(self, consumer: RecordedConsumer) -> asyncio.Future[None]:
        """Begin to run the handler, for single orders or for batches."""
        chance = self._context.chance
        invoices = await self._recorded.producer(INVOICES)

        async def handle_batch(messages: tuple[Message, ...], work: Work) -> None:
            for message in messages:
                await self._handle(consumer, invoices, message, work)

        async def handle_one(message: Message, work: Work) -> None:
            await self._handle(consumer, invoices, message, work)

        longest_ms = self._options.redelivery_delay_ms_max
        if self._options.returned and self._context.likely(self._options.returned):
            return self._begin_returned(consumer, invoices)
        share = self._options.begun_by_run
        if share and self._context.likely(share):

            async def handle_begun(messages: tuple[Message, ...], txn: Transaction) -> None:
                async with self._begun(txn) as work:
                    await handle_batch(messages, work)

            if chance.random() < 0.5:
                return asyncio.ensure_future(
                    consumer.consumer.run(
                        lambda message, txn: handle_begun((message,), txn),
                        concurrency=chance.randint(1, 3),
                        redelivery_delay_ms_max=longest_ms,
                    )
                )
            return asyncio.ensure_future(
                consumer.consumer.run_batches(
                    handle_begun, messages_max=chance.randint(1, BATCH_MAX), redelivery_delay_ms_max=longest_ms
                )
            )
        if chance.random() < 0.5:
            return asyncio.ensure_future(
                consumer.consumer.run(
                    handle_one,
                    transaction=self._transaction,
                    concurrency=chance.randint(1, 3),
                    redelivery_delay_ms_max=longest_ms,
                )
            )
        return asyncio.ensure_future(
            consumer.consumer.run_batches(
                handle_batch,
                messages_max=chance.randint(1, BATCH_MAX),
                transaction=self._transaction,
                redelivery_delay_ms_max=longest_ms,
            )
        )

    def _begin_returned(self, consumer: RecordedConsumer, invoices: RecordedProducer) -> asyncio.Future[None]:
        """Begin to run a handler that returns its invoices."""
        chance = self._context.chance
        longest_ms = self._options.redelivery_delay_ms_max

        async def bill(messages: tuple[Message, ...]) -> list[PlannedSend]:
            return await self._returned(consumer, invoices, messages)

        if chance.random() < 0.5:
            return asyncio.ensure_future(
                consumer.consumer.run(
                    lambda message: bill((message,)),
                    concurrency=chance.randint(1, 3),
                    redelivery_delay_ms_max=longest_ms,
                )
            )
        return asyncio.ensure_future(
            consumer.consumer.run_batches(
                bill, messages_max=chance.randint(1, BATCH_MAX), redelivery_delay_ms_max=longest_ms
            )
        )

    async def _returned(
        self, consumer: RecordedConsumer, invoices: RecordedProducer, messages: tuple[Message, ...]
    ) -> list[PlannedSend]:
        """
        Handle orders, and return their invoices.

        ``run`` sends them and acknowledges the orders in one transaction, and reports nothing of it. So the outcome is
        recorded as unknown.
        """
        recorded = self._recorded
        name = f"{history.UNNAMED}{recorded.unique()}"
        recorded.invoke(history.Begin()).ok(history.Begun(name))
        values = []
        for message in messages:
            handled = Handle(BILLING, consumer.name, SeenMessage.of(message), name)
            values.append(await recorded.record(handled, partial(self._invoice_for, message)))
        parts = [recorded.invoke(invoices.sending(value, "k", (name, 0), None)) for value in values]
        parts.append(recorded.invoke(consumer.acknowledging(messages, False, (name, 0))))
        parts.append(recorded.invoke(history.Commit(name)))
        for part in parts:
            part.unknown("the loop does not report it")
        return [invoices.producer.outgoing(value.encode(), key=b"k") for value in values]

    async def _wait(self, running: asyncio.Future[None], pause_ms: int) -> None:
        """Wait for some time, or until the run has ended."""
        environment = self._context.environment
        pause = asyncio.ensure_future(environment.sleep_until(environment.now_ms() + pause_ms))
        try:
            await asyncio.wait({running, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Work]:
        """Begin a transaction, and commit or abort it; all of that is recorded."""
        work = Work(await self._recorded.begin(timeout_ms=self._context.chance.choice(TIMEOUTS_MS)))
        try:
            yield work
        except BaseException as error:
            for ack in work.acks:
                ack.raised(error)
            with suppress(TxnFrameworkError):
                await self._recorded.abort(work.txn)
            raise
        # The loop has acknowledged the messages of the handler.
        for ack in work.acks:
            ack.ok()
        await self._recorded.commit(work.txn)

    @asynccontextmanager
    async def _begun(self, txn: Transaction) -> AsyncIterator[Work]:
        """Record the begin and the end of a transaction that ``run`` begins and ends."""
        self._note_outcomes(is_last=False)
        self._recorded.invoke(history.Begin()).ok(history.Begun(str(txn.id)))
        work = Work(txn)
        self._under_way.append(work)
        try:
            yield work
        except BaseException:
            work.end = self._recorded.invoke(history.Abort(str(txn.id)))
            raise
        work.commits = True
        work.end = self._recorded.invoke(history.Commit(str(txn.id), ()))

    def _note_outcomes(self, *, is_last: bool) -> None:
        self._under_way = [one for one in self._under_way if not one.note_outcome(is_last=is_last)]

    async def _handle(
        self, consumer: RecordedConsumer, invoices: RecordedProducer, message: Message, work: Work
    ) -> None:
        """Handle one order; the loop acknowledges it afterwards, in the same transaction."""
        handled = Handle(BILLING, consumer.name, SeenMessage.of(message), str(work.txn.id))
        await self._recorded.record(handled, lambda: self._bill(message, invoices, work.txn))
        acked = (AckedMessage.of(message),)
        operation = history.Acknowledge(BILLING, consumer.name, acked, False, str(work.txn.id), work.txn.branch)
        work.acks.append(self._recorded.invoke(operation))

    async def _bill(self, message: Message, invoices: RecordedProducer, txn: Transaction) -> None:
        value, fails = self._judge(message)
        await self._context.wait(WORK_MS_MAX)
        if not fails or self._context.likely(0.5):
            await invoices.send(f"{value}{ARROW}{self._recorded.unique()}", key="k", txn=txn)
        if fails:
            raise Refused(value)

    async def _invoice_for(self, message: Message) -> str:
        value, fails = self._judge(message)
        await self._context.wait(WORK_MS_MAX)
        if fails:
            raise Refused(value)
        return f"{value}{ARROW}{self._recorded.unique()}"

    def _judge(self, message: Message) -> tuple[str, bool]:
        """Return the value of an order, and whether its handler fails now."""
        value = (message.value or b"").decode()
        fails = value.endswith(POISON) or (
            not message.redelivery_count and self._context.likely(self._options.failures)
        )
        return value, fails
