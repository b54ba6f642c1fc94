"""An opened system, the argument of every measure: a family on its own stores, and the workload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import txnframework
from txnframework import Client, Message, Producer, Transaction
from txnframework.broker import Host, HostContext, open_host
from txnframework.client import Consumer
from txnframework.config import Config, check_config, load_config
from txnframework.model.transactions import Action
from txnframework.plugin import PluginRegistry
from txnframework_compare.backends import StoreUrls
from txnframework_compare.families import Family
from txnframework_compare.write_counts import Counts, counting_ledgers, counting_metadata


@dataclass(frozen=True, slots=True)
class Workload:
    """
    The transactions of a run, and how often each measure repeats them.

    * A counted transaction reads and writes ``topics`` topics, ``messages`` of each.
    * ``participants`` and ``finished`` are the sizes for the measures of ending and recovery.
    * ``concurrent`` is the number of concurrent transactions.
    * Every ``abort_every``-th finished transaction was aborted.
    * ``samples`` is the number of times that a round repeats fast work.
    """

    topics: int = 3
    messages: int = 10
    message_bytes: int = 100
    participants: tuple[int, ...] = (1, 10, 100, 1_000)
    finished: tuple[int, ...] = (10, 100, 1_000)
    concurrent: tuple[int, ...] = (1, 8, 64)
    abort_every: int = 10
    samples: int = 20
    rounds: int = 3

    def message(self) -> bytes:
        """Return the value of one message."""
        return b"x" * self.message_bytes

    def samples_of(self, size: int) -> int:
        """Return how often a round repeats work of this size; larger work is repeated less."""
        return max(1, min(self.samples, 2 * self.samples // size))


FULL: Final = Workload()
QUICK: Final = replace(
    FULL, messages=3, participants=(1, 10), finished=(10, 50), concurrent=(1, 8), samples=2, rounds=2
)
"""A workload that shows whether the measures run, not how fast."""


TIMEOUT_MS: Final = 24 * 3_600_000
"""Long enough that no transaction times out while others are measured."""
RECEIVE_TIMEOUT_MS: Final = 60_000
"""The longest wait for a message that has been sent."""
TOPIC_CREATIONS_MAX: Final = 16
"""How many topics are created concurrently."""


class System:
    """
    One family's client, with counting stores, on stores that no other system uses.

    There are no sweeps, and settling is left to ``end``, so nothing runs in the background of a measure. ``finished``
    and ``sealed`` count the transactions and topics that measures have left here in that state.
    """

    def __init__(self, family: Family, workload: Workload, config: Config, host: Host, counts: Counts) -> None:
        self.family = family
        self.workload = workload
        self.client = Client(host)
        self.counts = counts
        self.config = config
        self.finished = 0
        self.sealed = 0
        self._registry = host.registry
        self._producers: dict[str, Producer] = {}

    def topic(self, name: str) -> str:
        """Return the full name of a topic of this family."""
        return f"{self.family.domain}://public/compare/{name}"

    async def segment(self, name: str) -> str:
        """Return the full name of a topic's only segment."""
        layout = await self.client.layout(self.topic(name))
        (segment,) = layout.active()
        return str(layout.name_of(segment.id))

    async def producers(self, name: str, count: int) -> list[Producer]:
        """
        Return producers for ``count`` topics, ``name`` and a number; each is created once, and sends one message then.
        """
        slots = asyncio.Semaphore(TOPIC_CREATIONS_MAX)

        async def make(topic: str) -> None:
            async with slots:
                await self.client.create_topic(topic)
                producer = await self.client.producer(topic)
                await producer.send(self.workload.message())
                self._producers[topic] = producer

        topics = [self.topic(f"{name}-{number}") for number in range(count)]
        await asyncio.gather(*(make(topic) for topic in topics if topic not in self._producers))
        return [self._producers[topic] for topic in topics]

    async def begin(self) -> Transaction:
        """Begin a transaction of this family."""
        txn = self.client.transaction(timeout_ms=TIMEOUT_MS, domain=self.family.section)
        await txn.begin()
        return txn

    async def end(self, txn: Transaction, action: Action = Action.COMMIT) -> None:
        """End a transaction and settle it."""
        await (txn.commit() if action is Action.COMMIT else txn.abort())
        await self.settle(txn)

    async def settle(self, txn: Transaction) -> None:
        """Settle an ended transaction at all participants."""
        await self.client.settle(txn.id)

    def other(self) -> AbstractAsyncContextManager[Client]:
        """Open another client on the same stores, like another process; its writes are not counted."""
        return txnframework.open(self.config, registry=self._registry)

    async def close(self) -> None:
        """Close the client and its stores."""
        await self.client.host.close()


@asynccontextmanager
async def opened_system(
    family: Family, urls: StoreUrls, workload: Workload, registry: PluginRegistry, transactions: Mapping[str, object]
) -> AsyncIterator[System]:
    """
    Open a family on these stores; ``transactions``: the options that a measure sets in the section ``[transactions]``.
    """
    quiet = {"sweep": False, "timeout_ms_max": TIMEOUT_MS, **transactions}
    config = load_config({**family.config(), **urls.config(), "transactions": quiet})
    check_config(config, registry)
    inner = await open_host(config, registry)
    counts = Counts()
    metadata, ledgers = counting_metadata(inner.metadata, counts), counting_ledgers(inner.ledgers, counts)
    host = Host(HostContext(config, registry, inner.environment, metadata, ledgers))
    host.own_transactions.settles = False  # the measure settles explicitly
    system = System(family, workload, config, host, counts)
    try:
        yield system
    finally:
        await system.close()  # closes the stores of both hosts


async def received(consumer: Consumer, count: int) -> list[Message]:
    """Return the next ``count`` messages of a consumer."""
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.receive_many(messages_max=count - len(found), timeout_ms=RECEIVE_TIMEOUT_MS)
    return found
