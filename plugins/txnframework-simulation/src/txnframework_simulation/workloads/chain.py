"""Consume, transform, produce: every order becomes exactly one invoice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from txnframework.client import Message, Transaction
from txnframework.errors import Conflict, Unavailable
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.workloads.oracles import drained, drained_subscription, sends_of
from txnframework_simulation.workloads.recorded_client import RecordedConsumer, RecordedProducer
from txnframework_simulation.workloads.workload import NAMESPACE, ActorContext, Options, Subscribed, Workload

BILLING = "billing"
ARROW = ">"
"""Separates, in the value of an invoice, the value of the order and a unique text."""


class ChainOptions(Options, frozen=True, kw_only=True):
    """The options of the chain."""

    orders: str = "orders"
    invoices: str = "invoices"
    """The names of the topics."""
    segments: int = 2
    types: tuple[str, ...] = ("shared", "failover", "exclusive", "key_shared")
    """
    The types of consumers, by host.

    The subscription's type changes when another host takes over.
    """
    aborts: float = 0.15
    forgotten: float = 0.05
    """The share of transactions that are neither committed nor aborted, and time out."""
    at_once: float = 0.0
    """The share of invoices that are written, with the acknowledgments of the orders, in one call."""

    @property
    def orders_topic(self) -> str:
        """The topic of the orders."""
        return f"{NAMESPACE}/{self.orders}"

    @property
    def invoices_topic(self) -> str:
        """The topic of the invoices."""
        return f"{NAMESPACE}/{self.invoices}"


class Chain(Workload[ChainOptions]):
    """
    Clients send orders, in transactions and outside. Workers turn orders into invoices, in transactions.

    Each readable order has exactly one invoice, or the subscription still delivers it. It never has both, and never two
    invoices.
    """

    options_type = ChainOptions

    @property
    def topics(self) -> dict[str, int]:
        """The topics of orders and invoices."""
        return {self.options.orders_topic: self.options.segments, self.options.invoices_topic: 1}

    @property
    def subscriptions(self) -> tuple[Subscribed, ...]:
        """The subscription of the workers."""
        return (Subscribed(self.options.orders_topic, BILLING),)

    @property
    def types(self) -> dict[str, str]:
        """The subscription types of the workers."""
        return {f"types[{number}]": name for number, name in enumerate(self.options.types)}

    async def run(self, context: ActorContext) -> None:
        """Send orders and bill them."""
        actor = self.clerk(context)
        await context.repeat({actor.order: 2, actor.bill: 3})

    def clerk(self, context: ActorContext) -> Clerk:
        """Return one actor."""
        return Clerk(context, self.options)

    def violations(self, history: History) -> list[Violation]:
        """Compare orders, invoices and undelivered orders."""
        topic = self.options.orders_topic
        orders, invoices = drained(history, topic), drained(history, self.options.invoices_topic)
        waiting = drained_subscription(history, topic, BILLING)
        if orders is None or invoices is None or waiting is None:
            return []
        billed = Counter(value.partition(ARROW)[0] for value in invoices if ARROW in value)
        sentences = [f"order {one} was billed {times} times" for one, times in billed.items() if times > 1]
        sentences += [f"order {one} was billed and is still delivered" for one in waiting if one in billed]
        left = set(waiting)
        sentences += [
            f"order {one} has no invoice and is not delivered"
            for one in orders
            if one not in billed and one not in left
        ]
        there = set(orders)
        sentences += [f"order {one} was billed and cannot be read" for one in billed if one not in there]
        return [
            Violation("every order becomes one invoice", sentence, sends_of(history, sentence.split()[1]))
            for sentence in sentences
        ]


class Clerk:
    """One actor."""

    def __init__(self, context: ActorContext, options: ChainOptions) -> None:
        self._context = context
        self._options = options
        self._recorded = context.recorded

    async def order(self) -> None:
        """Send a few orders, in a transaction or outside."""
        chance, recorded = self._context.chance, self._recorded
        producer = await recorded.producer(self._options.orders_topic)
        values = [(recorded.unique(), f"k{chance.randrange(4)}") for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            for value, key in values:
                await producer.send(value, key=key)
            return
        txn = await recorded.begin()
        try:
            for value, key in values:
                await producer.send(value, key=key, txn=txn)
        finally:
            await self._end(txn)

    async def bill(self) -> None:
        """Join, turn some orders into invoices, and leave."""
        context = self._context
        kind = self._options.types[context.host % len(self._options.types)]
        consumer = await self._recorded.consumer(self._options.orders_topic, BILLING, type=kind)
        try:
            invoices = await self._recorded.producer(self._options.invoices_topic)
            while context.more() and await self._bill_some(consumer, invoices):
                pass
        finally:
            await consumer.close()

    async def _bill_some(self, consumer: RecordedConsumer, invoices: RecordedProducer) -> bool:
        chance = self._context.chance
        received = await consumer.receive(chance.randint(1, 3), timeout_ms=300)
        if not received:
            return False
        if self._options.at_once and self._context.likely(self._options.at_once):
            return await self.bill_at_once(received, consumer, invoices)
        txn = await self.begin_billing(chance.choice((2_000, 10_000)))
        try:
            await self.transform(received, consumer, invoices, txn)
        except (Conflict, Unavailable):
            await self._recorded.abort(txn)
            return False
        await self.end_billing(txn)
        return chance.random() < 0.7

    async def bill_at_once(
        self, received: tuple[Message, ...], consumer: RecordedConsumer, invoices: RecordedProducer
    ) -> bool:
        """Write the invoices of some orders, and acknowledge the orders, in one call; return whether to go on."""
        sends = [(invoices, invoice, "k") for invoice in self.invoices_of(received)]
        groups = [received] if self._context.likely(0.7) else [(order,) for order in received]
        try:
            await self.transact(sends, [(consumer, some) for some in groups])
        except (Conflict, Unavailable):
            return False
        return True

    async def transact(
        self,
        sends: Sequence[tuple[RecordedProducer, str, str]],
        acks: Sequence[tuple[RecordedConsumer, tuple[Message, ...]]],
    ) -> None:
        """Send invoices and acknowledge orders in one call."""
        await self._recorded.transact(sends, acks)

    async def begin_billing(self, timeout_ms: int) -> Transaction:
        """Begin the transaction of some invoices."""
        return await self._recorded.begin(timeout_ms=timeout_ms)

    async def write_invoice(self, invoice: str, invoices: RecordedProducer, txn: Transaction) -> None:
        """Write one invoice in a transaction."""
        await invoices.send(invoice, key="k", txn=txn)

    def invoices_of(self, received: tuple[Message, ...]) -> list[str]:
        """Return the values of the invoices of some orders."""
        return [f"{(order.value or b'').decode()}{ARROW}{self._recorded.unique()}" for order in received]

    async def transform(
        self, received: tuple[Message, ...], consumer: RecordedConsumer, invoices: RecordedProducer, txn: Transaction
    ) -> None:
        """Write the invoices of some orders, and acknowledge the orders."""
        for invoice in self.invoices_of(received):
            await self.write_invoice(invoice, invoices, txn)
        await consumer.ack(*received, txn=txn)

    async def end_billing(self, txn: Transaction) -> None:
        """Commit or abort the transaction of some invoices, or forget it."""
        await self._end(txn)

    async def _end(self, txn: Transaction) -> None:
        drawn = self._context.chance.random()
        if drawn < self._options.forgotten:
            return
        if drawn < self._options.forgotten + self._options.aborts:
            await self._recorded.abort(txn)
        else:
            await self._recorded.commit(txn)
