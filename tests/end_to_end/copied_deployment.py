"""A deployment with everything that a copy must keep, and what a test observes after reopening it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnframework
from txnframework import Client, DeadLetter, State
from txnframework.broker import AuditReport, CopyReport, CopyRequest, audit_stores, copy_stores, reopen
from txnframework.config import Config, load_config
from txnframework.errors import DeploymentClosed
from txnframework.model import TopicName
from txnframework.plugin import PluginRegistry
from txnframework.testing.clock import VirtualEnvironment

SOON_MS = 60_000
LONG_MS = 3_600_000
LETTERS = "orders-billing-DLQ"
RULE = DeadLetter(redeliveries_max=1)
LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
NAMES = ("committed", "aborted", "open")
LATER = (b"more", b"end")


class Scene:
    """The same history for topics of either family; ``domain`` is that of the transactions."""

    def __init__(self, domain: str = "segment") -> None:
        self.domain = domain
        self.open_id = ""

    @property
    def is_scalable(self) -> bool:
        """Whether topics can be split."""
        return self.domain == "segment"

    async def play(self, client: Client) -> None:
        """Leave committed, aborted and open transactions, pending acknowledgments, counts, and a deleted topic."""
        await client.create_topic("orders")
        await client.create_topic(LETTERS)
        for subscription in ("billing", "shipping", "archive"):
            await client.subscribe("orders", subscription, start="earliest")
        await client.subscribe(LETTERS, "people", start="earliest")
        await client.create_topic("gone")
        await (await client.producer("gone")).send(b"gone")
        await client.delete_topic("gone", force=True)
        producer = await client.producer("orders", name="shop")
        await producer.send_many([b"bad", b"good"], key=b"one key")
        await self._count_deliveries(client)
        await self._trim(client)
        await producer.send_many([b"1", b"2", b"3"], key=b"one key")
        for name in NAMES:
            await self._transaction(client, name)
        if self.is_scalable:
            await client.split("orders", 0)
            producer = await client.producer("orders", name="shop again")
            for number in range(8):
                await producer.send(b"%d after the split" % number, key=b"%d" % number)

    async def _count_deliveries(self, client: Client) -> None:
        """Deliver the first message as often as a dead letter is, and once to the others."""
        for _ in range(2):
            async with await client.consumer("orders", "billing", dead_letter=RULE) as consumer:
                assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"bad"
        async with (
            await client.consumer("orders", "billing", dead_letter=RULE) as consumer,
            await client.consumer(LETTERS, "people") as letters,
        ):
            other = await consumer.receive(timeout_ms=SOON_MS)
            assert other.value == b"good"
            await consumer.ack(other)
            assert (await letters.receive(timeout_ms=SOON_MS)).value == b"bad"

    async def _trim(self, client: Client) -> None:
        """Leave a topic of which the first messages are removed."""
        await client.create_topic("short")
        await client.subscribe("short", "all", start="earliest")
        producer = await client.producer("short", name="shop")
        domain = "topic" if self.is_scalable else "persistent"
        topic = TopicName.parse(f"{domain}://public/default/short")
        name = str((await client.layout(topic)).name_of(0)) if self.is_scalable else str(topic)
        ledger = (await client.host.segment(name)).ledger
        first = (await ledger.tail()).open_ledger_id
        async with await client.consumer("short", "all") as consumer:
            for value in (b"trimmed", b"kept"):
                await producer.send(value)
                await consumer.ack(await consumer.receive(timeout_ms=SOON_MS))
                await ledger.roll()
                if value == b"trimmed":
                    await client.host.maintenance.round()
        assert (await ledger.ledgers(-1, 1))[0].ledger_id > first, "nothing was trimmed"

    async def _transaction(self, client: Client, name: str) -> None:
        """Send a message and acknowledge one in a transaction, and end it as its name says."""
        txn = client.transaction(domain=self.domain, outlives_client=True, timeout_ms=LONG_MS)
        await txn.begin()
        await (await client.producer("orders")).send(name.encode(), key=b"one key", txn=txn)
        async with await client.consumer("orders", "shipping") as consumer:
            await consumer.ack(await consumer.receive(timeout_ms=SOON_MS), txn=txn)
        if name == "open":
            self.open_id = str(txn.id)
        else:
            await (txn.commit() if name == "committed" else txn.abort())

    async def observe(self, client: Client, end: str) -> list[Any]:
        """End the open transaction, receive and send; return everything that was observed."""
        seen: list[Any] = [await client.outcome(self.open_id)]
        await (client.commit(self.open_id) if end == "commit" else client.abort(self.open_id))
        seen.append(await client.outcome(self.open_id))
        assert seen == [State.OPEN, State.COMMITTED if end == "commit" else State.ABORTED]
        producer = await client.producer("orders", name="shop")
        await producer.send_many([b"more"] * 3, key=b"one key")
        split, commit = 8 * self.is_scalable, end == "commit"
        for subscription, count in (("billing", 7 + commit), ("shipping", 8), ("archive", 9 + commit)):
            async with await client.consumer("orders", subscription) as consumer:
                seen.append(sorted(await received(consumer, count + split)))
                await producer.send(b"end", key=b"one key")
                assert [value for value, _, _ in await received(consumer, 1)] == [b"end"]
        async with await client.reader("orders") as reader:
            seen.append(sorted([(m.value, str(m.id), m.published_ms) async for m in reader if m.value not in LATER]))
        return seen


async def received(consumer: Any, count: int) -> list[tuple[bytes, str, int]]:
    """Receive and acknowledge messages; return ids only of messages that were sent before the copy."""
    found = []
    while len(found) < count:
        message = await consumer.receive(timeout_ms=SOON_MS)
        await consumer.ack(message)
        if message.value != b"end":
            found.append((message.value, "" if message.value in LATER else str(message.id), message.redelivery_count))
        elif count == 1:
            return [(b"end", "", 0)]
    return found


NOTHING_KEPT = {"time_ms": 0}


class Deployments:
    """A source and a target; opening one of them is a process that uses it."""

    def __init__(
        self, registry: PluginRegistry, source: dict[str, str], target: dict[str, str], **sections: Any
    ) -> None:
        self.registry = registry
        self.clock = VirtualEnvironment()
        shared = {"subscriptions": {"redelivery_delay_ms": 0}, "retention": NOTHING_KEPT, **sections}
        self.configs = {
            name: {"metadata": {"url": urls["metadata"]}, "ledger": {"url": urls["ledger"]}, **shared}
            for name, urls in (("source", source), ("target", target))
        }

    def open(self, name: str) -> Any:
        return txnframework.open(self.configs[name], registry=self.registry, environment=self.clock)

    def loaded(self) -> tuple[Config, Config]:
        return load_config(self.configs["source"]), load_config(self.configs["target"])

    async def copy(self, *, keep_source: bool = False, dry_run: bool = False) -> CopyReport:
        return await copy_stores(*self.loaded(), CopyRequest(keep_source, dry_run), self.registry, self.clock)

    async def audit(self) -> AuditReport:
        return await audit_stores(*self.loaded(), self.registry, self.clock)

    async def reopen(self, *, with_target: bool = False) -> str:
        source, target = self.loaded()
        return await reopen(source, target if with_target else None, self.registry, self.clock)

    async def refuses(self, name: str) -> None:
        with pytest.raises(DeploymentClosed):
            async with self.open(name):
                pass


def urls(kind: str, side: str, directory: Path) -> dict[str, str]:
    if kind == "memory":
        place = f"{kind}://{directory.name}-{side}"
        return {"metadata": place, "ledger": place}
    return {name: f"sqlite:///{directory}/{side}-{name}.db" for name in ("metadata", "ledger")}
