"""The drain: reads everything with new clients at the end of a run."""

from __future__ import annotations

from typing import Any

from txnframework.client import Client, Message
from txnframework.errors import ReceiveTimeout, TransactionNotFound, TxnFrameworkError
from txnframework.model.dispatch import OtherType
from txnframework.model.positions import Limit
from txnframework_simulation import history
from txnframework_simulation.history import MessagePosition, SeenMessage
from txnframework_simulation.workloads.recorded_client import RecordedClient
from txnframework_simulation.workloads.workload import Subscribed, Workload

ROUND_MS = 2_000
LAST_MESSAGES = 8
ROUNDS = 3
"""The number of receives without a message after which a subscription counts as drained."""


async def drain(recorded: RecordedClient, workload: Workload[Any], transactions: tuple[str, ...]) -> None:
    """
    Read all outcomes, topics and subscriptions, with new readers and consumers that change nothing.

    It runs after everything has settled, without faults and without other clients.
    """
    for txn in transactions:
        await drain_outcome(recorded, txn)
    for topic in workload.topics:
        await drain_topic(recorded, topic)
    for topic in workload.compacted:
        await drain_compacted(recorded, topic)
    for one in workload.subscriptions:
        await drain_subscription(recorded, one)


async def write_everywhere(recorded: RecordedClient, topic: str) -> None:
    """Send a few messages to a topic without faults, with keys for all of its segments."""
    producer = await recorded.producer(topic)
    for number in range(LAST_MESSAGES):
        await producer.send(recorded.unique(), key=f"last {number}")


async def drain_outcome(recorded: RecordedClient, txn: str) -> None:
    """Ask for the outcome of a transaction; it is valid that the transaction is no longer known."""
    try:
        await recorded.record(
            history.DrainOutcome(txn), lambda: recorded.client.outcome(txn), lambda found: history.Outcome(found.value)
        )
    except TransactionNotFound:
        return


async def drain_topic(recorded: RecordedClient, topic: str) -> None:
    """Read a topic from its beginning to its end."""

    async def read() -> tuple[tuple[Message, ...], tuple[MessagePosition, ...]]:
        async with await recorded.client.reader(topic) as reader:
            messages = tuple([message async for message in reader])
        return messages, await first_left(recorded.client, topic)

    await recorded.record(
        history.DrainTopic(topic), read, lambda found: history.Drained(tuple(map(SeenMessage.of, found[0])), found[1])
    )


async def drain_compacted(recorded: RecordedClient, topic: str) -> None:
    """Read the compacted messages of a topic, and all later ones."""

    async def read() -> tuple[Message, ...]:
        async with await recorded.client.reader(topic, compacted=True) as reader:
            return tuple([message async for message in reader])

    await recorded.record(
        history.DrainCompacted(topic), read, lambda messages: history.Drained(tuple(map(SeenMessage.of, messages)))
    )


async def drain_subscription(recorded: RecordedClient, one: Subscribed) -> None:
    """Receive all messages that a subscription still delivers."""

    async def receive() -> tuple[Message, ...]:
        consumer = await recorded.client.consumer(one.topic, one.name, type=OtherType(one.type), start="earliest")
        received: list[Message] = []
        rounds = 0
        async with consumer:
            while rounds < ROUNDS:
                try:
                    received += await consumer.receive_many(messages_max=100, timeout_ms=ROUND_MS)
                except ReceiveTimeout:
                    rounds += 1
        return tuple(received)

    try:
        await recorded.record(
            history.DrainSubscription(one.topic, one.name, one.type),
            receive,
            lambda messages: history.Drained(tuple(map(SeenMessage.of, messages))),
        )
    except TxnFrameworkError:
        return  # the history contains the error


async def first_left(client: Client, topic: str) -> tuple[MessagePosition, ...]:
    """Return the first remaining place of each trimmed segment."""
    layout = await client.layout(topic)
    found = []
    for segment in layout.in_order():
        name = str(layout.name_of(segment.id))
        try:
            opened = await client.host.segment(name)
            left = await opened.ledger.ledgers(-1, Limit(1).items)
            # A sealed segment may have no remaining ledger.
            first = left[0].ledger_id if left else (await opened.ledger.tail()).last_confirmed.ledger_id + 1
        except TxnFrameworkError:
            continue
        if first > 0:
            found.append(MessagePosition(name, first, 0))
    return tuple(found)
