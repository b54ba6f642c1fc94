"""Duration of a new process's recovery, by the number of finished transactions."""

from __future__ import annotations

import asyncio
from typing import Final

from txnframework import Client, Consumer, Message, Producer
from txnframework.model.transactions import Action, OpenQuery
from txnframework_compare.measures._measure import Figure, Measure, Plot, TableView, median, timed_ms
from txnframework_compare.system import System, received

INPUT: Final = "recovery-input"
OUTPUT: Final = "recovery-output"
SUBSCRIPTION: Final = "compare"
CONCURRENT_MAX: Final = 32
"""How many transactions of the history run concurrently."""
OPENINGS: Final = 5
"""The maximum number of recoveries in a round."""


async def recovery(system: System, finished: int) -> tuple[Figure, ...]:
    """
    Time the recovery of a client that has nothing open yet.

    It opens the coordinator with its open transactions, the topic that was written to, and the pending acknowledgments
    of the subscription. Before that, transactions are run until ``finished`` of them have ended.
    """
    await _let_finish(system, finished)
    parts = [await _opened(system) for _ in range(min(OPENINGS, system.workload.samples))]
    coordinator, topic, subscription = (median(each) for each in zip(*parts, strict=True))
    return (
        Figure("total", median([sum(each) for each in parts]), "ms"),
        Figure("coordinator", coordinator, "ms"),
        Figure("topic", topic, "ms"),
        Figure("subscription", subscription, "ms"),
    )


async def _opened(system: System) -> tuple[float, float, float]:
    """Return the durations for the coordinator, the topic and the subscription, in milliseconds."""
    written, read = await system.segment(f"{OUTPUT}-0"), await system.segment(f"{INPUT}-0")
    async with system.other() as client:
        return (
            await timed_ms(_coordinator(client, system)),
            await timed_ms(client.host.segment(written)),
            await timed_ms(_subscription(client, system.topic(f"{INPUT}-0"), read)),
        )


async def _coordinator(client: Client, system: System) -> None:
    coordinator = await client.host.coordinator(system.family.section)
    await coordinator.list_open(OpenQuery())


async def _subscription(client: Client, topic: str, segment: str) -> None:
    subscription = await client.host.subscription(topic, SUBSCRIPTION, segment)
    await subscription.pending_acks.recover()


async def _let_finish(system: System, finished: int) -> None:
    """Run transactions until ``finished`` have ended; each acknowledges one message and sends one."""
    (source,) = await system.producers(INPUT, 1)
    (sink,) = await system.producers(OUTPUT, 1)
    async with await system.client.consumer(system.topic(f"{INPUT}-0"), SUBSCRIPTION, start="latest") as consumer:
        while system.finished < finished:
            numbers = range(system.finished, min(finished, system.finished + CONCURRENT_MAX))
            await source.send_many([system.workload.message()] * len(numbers))
            messages = await received(consumer, len(numbers))
            await asyncio.gather(
                *(
                    _run(system, sink, consumer, message, _action(system, number))
                    for number, message in zip(numbers, messages, strict=True)
                )
            )
            system.finished += len(numbers)


def _action(system: System, number: int) -> Action:
    return Action.ABORT if number % system.workload.abort_every == 0 else Action.COMMIT


async def _run(system: System, sink: Producer, consumer: Consumer, message: Message, action: Action) -> None:
    txn = await system.begin()
    await sink.send(system.workload.message(), txn=txn)
    await consumer.ack(message, txn=txn)
    await system.end(txn, action)


RECOVERY = Measure(
    name="recovery",
    title="Recovery of a process",
    take=recovery,
    axis="finished transactions",
    sizes=lambda workload: workload.finished,
    views=(
        TableView(
            "coordinator, topic and subscription open, ms",
            {"total": "total"},
            "How long a new client takes to open all of these after this number of transactions.",
        ),
    ),
    plot=Plot("lines", {"total": "total"}, "until everything is open (ms)"),
)
