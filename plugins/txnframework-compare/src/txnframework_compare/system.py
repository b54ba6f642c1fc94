"""A family opened on a place of its own: the argument of every measure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import txnframework
from txnframework import Client, Message, Producer, Transaction, TxnID
from txnframework.broker import Host, HostContext, open_host
from txnframework.client import Consumer
from txnframework.config import Config, check_config, load_config
from txnframework.model.transactions import Action
from txnframework.plugin import PluginRegistry
from txnframework_compare.backends import Place
from txnframework_compare.counting import Counts, counting_ledgers, counting_metadata
from txnframework_compare.families import Family
from txnframework_compare.workload import Workload

TIMEOUT_MS: Final = 24 * 3_600_000
"""Long enough that no transaction times out while others are measured."""
SOON_MS: Final = 60_000
"""The longest wait for a message that has been sent."""
TOPICS_TOGETHER: Final = 16
"""How many topics are created concurrently."""


class System:
    """
    One family's client, with counting stores, on a place that no other system uses.

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
        together = asyncio.Semaphore(TOPICS_TOGETHER)

        async def make(topic: str) -> None:
            async with together:
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
        """Open another client on the same place, like another process; its writes are not counted."""
        return txnframework.open(self.config, registry=self._registry)

    async def close(self) -> None:
        """Close the client and its stores."""
        await self.client.host.close()


class _UnsettledHost(Host):
    """A host that never settles transactions in the background."""

    def settle_soon(self, txn_id: TxnID) -> None:
        """Do nothing; the measure settles explicitly."""


@asynccontextmanager
async def opened(
    family: Family, place: Place, workload: Workload, registry: PluginRegistry, transactions: Mapping[str, object]
) -> AsyncIterator[System]:
    """Open a family on a place; ``transactions`` are the options that a measure sets in that configuration section."""
    quiet = {"sweep": False, "timeout_ms_max": TIMEOUT_MS, **transactions}
    config = load_config({**family.config(), **place.config(), "transactions": quiet})
    check_config(config, registry)
    inner = await open_host(config, registry)
    counts = Counts()
    metadata, ledgers = counting_metadata(inner.metadata, counts), counting_ledgers(inner.ledgers, counts)
    host = _UnsettledHost(HostContext(config, registry, inner.environment, metadata, ledgers))
    system = System(family, workload, config, host, counts)
    try:
        yield system
    finally:
        await system.close()  # closes the stores of both hosts


async def received(consumer: Consumer, count: int) -> list[Message]:
    """Return the next ``count`` messages of a consumer."""
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.receive_many(messages_max=count - len(found), timeout_ms=SOON_MS)
    return found
