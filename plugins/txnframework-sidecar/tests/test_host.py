"""Persistent topics with the sidecar, as a program uses them: over memory and, where it is there, SQLite."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import txnframework
from txnframework import Client
from txnframework.errors import ConfigurationError, InvalidInput, NotFound, ReceiveTimeout
from txnframework.model import State
from txnframework.plugin import load_plugins
from txnframework_legacy.beside import what_of
from txnframework_sidecar.ledgers import names_of

ORDERS, INVOICES = "persistent://public/default/orders", "persistent://public/default/invoices"
MARKED = "persistent://public/marked/orders"
SOON_MS = 10_000
PLUGINS = ("memory", "metadata", "dispatchers", "legacy", "sidecar", "sql")
BACKENDS = [name for name in ("memory", "sql") if importlib.util.find_spec(f"txnframework_{name}")]

_names = count()


class Stores:
    """One test's stores; every ``open`` is another process."""

    def __init__(self, url: str) -> None:
        installed = [name for name in PLUGINS if importlib.util.find_spec(f"txnframework_{name}")]
        self._registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in installed])
        self._config: dict[str, Any] = {
            "metadata": {"url": url},
            "ledger": {"url": url},
            "namespaces": {"public/default": {"persistent": {"buffer": "sidecar"}}},
            "subscriptions": {"redelivery_delay_ms": 0},
        }

    @asynccontextmanager
    async def open(self, **sections: Any) -> AsyncIterator[Client]:
        async with txnframework.open(self._config | sections, registry=self._registry) as client:
            yield client

    @staticmethod
    def run(work: Awaitable[None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await work

        asyncio.run(bounded())


@pytest.fixture(params=BACKENDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    url = f"memory://sidecar-{next(_names)}" if request.param == "memory" else f"sqlite:///{tmp_path}/txn.db"
    return Stores(url)


async def read(client: Client, topic: str) -> list[bytes]:
    async with await client.reader(topic) as reader:
        return [message.value async for message in reader]


def test_produce_and_acknowledge_in_one(stores: Stores) -> None:
    """What a transaction sends and acknowledges over persistent topics takes effect as one, or not at all."""

    async def work() -> None:
        async with stores.open() as client:
            for topic in (ORDERS, INVOICES):
                await client.create_topic(topic)
            orders, invoices = await client.producer(ORDERS), await client.producer(INVOICES)
            await orders.send_many([b"1", b"2"])
            async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
                first, second = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)]
                async with client.transaction(domain="persistent") as txn:
                    await invoices.send(b"invoice 1", txn=txn)
                    await consumer.ack(first, txn=txn)
                    assert await read(client, INVOICES) == []
                assert await read(client, INVOICES) == [b"invoice 1"]
                given_up = client.transaction(domain="persistent")
                await given_up.begin()
                await invoices.send(b"invoice 2", txn=given_up)
                await consumer.ack(second, txn=given_up)
                await given_up.abort()
                again = await consumer.receive(timeout_ms=SOON_MS)
                assert (again.value, again.redelivery_count) == (b"2", 1)
                await consumer.ack(again)
        async with stores.open() as client:
            assert await read(client, INVOICES) == [b"invoice 1"]

    stores.run(work())


def test_messages_of_a_transaction_are_acknowledged_one_by_one(stores: Stores) -> None:
    """
    A waiting consumer gets a commit's messages with ids of one position and an index each, and acknowledges some; the
    others come again, and the lag counts them.
    """

    async def work() -> None:
        async with stores.open() as client, stores.open() as other:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            async with await other.consumer(ORDERS, "billing", start="earliest") as consumer:
                txn = client.transaction(domain="persistent")
                await txn.begin()
                for number in range(3):
                    await producer.send(b"inside %d" % number, txn=txn)
                await producer.send(b"behind")
                assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"behind"
                with pytest.raises(ReceiveTimeout):
                    await consumer.receive(timeout_ms=50)
                await txn.commit()
                received = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(3)]
                assert [message.value for message in received] == [b"inside 0", b"inside 1", b"inside 2"]
                places = [message.id.position for message in received]
                assert {place.entry for place in places} == {places[0].entry}
                assert [place.batch_index for place in places] == [0, 1, 2]
                await consumer.ack(received[1])
                assert await other.outcome(txn.id) is State.COMMITTED
            async with await client.consumer(ORDERS, "billing") as consumer:
                left = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(3)]
                assert [message.value for message in left] == [b"behind", b"inside 0", b"inside 2"]
                assert (await client.lag(ORDERS, "billing")).messages == 3

    stores.run(work())


def test_commits_are_read_in_their_order(stores: Stores) -> None:
    """The order of a topic is the order of the commits, however the transactions were interleaved."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            txns = [client.transaction(domain="persistent") for _ in range(3)]
            for txn in txns:
                await txn.begin()
            for number in range(3):
                for name, txn in zip("abc", txns, strict=True):
                    await producer.send(f"{name}{number}".encode(), txn=txn)
            a, b, c = txns
            await c.commit()
            await b.abort()
            await producer.send(b"plain")
            await a.commit()
            expected = [b"c0", b"c1", b"c2", b"plain", b"a0", b"a1", b"a2"]
            assert await read(client, ORDERS) == expected
        async with stores.open() as client:
            assert await read(client, ORDERS) == expected

    stores.run(work())


def test_what_a_process_left_open_is_aborted(stores: Stores) -> None:
    """A client that goes leaves no open transaction behind, and what it sent is never read."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await (await client.producer(ORDERS)).send(b"inside", txn=txn)
        async with stores.open() as client:
            await (await client.producer(ORDERS)).send(b"behind")
            await client.upkeep()
            assert await client.outcome(txn.id) is State.ABORTED
            assert await read(client, ORDERS) == [b"behind"]

    stores.run(work())


BUSY = {
    "buffers": {
        "sidecar": {
            "snapshot_entries": 1,
            "sidecar_ledger_entries_max": 2,
            "compaction_ledgers_kept_max": 0,
            "marker_messages_max": 2,
        }
    },
}


@pytest.mark.parametrize("time_ms", [-1, 3_600_000], ids=["for ever", "for an hour"])
def test_restarted_and_compacted_while_it_is_read(stores: Stores, time_ms: int) -> None:
    """
    A consumer that reads on over restarts, snapshots and compaction gets every committed message once, in order;
    however long messages are kept, what is beside the topic is compacted.
    """
    kept_for: dict[str, Any] = {**BUSY, "retention": {"time_ms": time_ms}}

    async def work() -> None:
        expected: list[bytes] = []
        received: list[bytes] = []
        async with stores.open(**kept_for) as reading:
            await reading.create_topic(ORDERS)
            async with await reading.consumer(ORDERS, "billing", start="earliest") as consumer:
                for turn in range(3):
                    async with stores.open(**kept_for) as client:
                        producer = await client.producer(ORDERS)
                        kept, dropped = (client.transaction(domain="persistent") for _ in range(2))
                        for txn in (kept, dropped):
                            await txn.begin()
                        for number in range(5):
                            await producer.send(b"kept %d %d" % (turn, number), txn=kept)
                            await producer.send(b"dropped", txn=dropped)
                        await producer.send(b"plain %d" % turn)
                        await dropped.abort()
                        await kept.commit()
                        expected += [b"plain %d" % turn, *(b"kept %d %d" % (turn, number) for number in range(5))]
                        await client.upkeep()
                        row = await client.host.ledgers.open(names_of(ORDERS, 1).sidecar)
                        assert sum(one.entries for one in await row.ledgers(-1, 99)) <= 3, "it is compacted"
                        message = await consumer.receive(timeout_ms=SOON_MS)
                        received.append(message.value)
                        await consumer.ack(message)
                while len(received) < len(expected):
                    received.append((await consumer.receive(timeout_ms=SOON_MS)).value)
                assert received == expected
        async with stores.open(**kept_for) as client:
            assert await read(client, ORDERS) == expected

    stores.run(work())


def test_what_is_beside_a_topic_goes_with_it(stores: Stores) -> None:
    """A deleted topic leaves nothing beside it, and the next one of its name begins with nothing."""

    async def beside(client: Client) -> list[str]:
        return [what_of(name)[2] for name in await client.host.ledgers.list_names("sidecar:", "", 9)]

    async def work() -> None:
        async with stores.open(**BUSY) as client:
            for number in range(2):
                await client.create_topic(ORDERS)
                producer = await client.producer(ORDERS)
                for _ in range(2):
                    async with client.transaction(domain="persistent") as txn:
                        await producer.send_many([b"%d" % number, b"again"], txn=txn)
                await client.upkeep()
                assert await read(client, ORDERS) == [b"%d" % number, b"again"] * 2
                assert await beside(client) == ["", "compacted", "snapshots"]
                await client.delete_topic(ORDERS, force=True)
                assert await beside(client) == []

    stores.run(work())


def test_a_topic_is_compacted_in_either_order(stores: Stores) -> None:
    """What the client compacts of a topic holds the committed messages of each key, whichever order is asked for."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            await producer.send(b"old", key=b"k")
            async with client.transaction(domain="persistent") as txn:
                await producer.send(b"new", key=b"k", txn=txn)
            for order in ("position", "commit"):
                await client.compact(ORDERS, order=order)
                async with await client.reader(ORDERS, compacted=True) as reader:
                    assert [message.value async for message in reader] == [b"new"]

    stores.run(work())


def test_a_namespace_has_its_own_buffer(stores: Stores) -> None:
    """One transaction writes to topics of both buffers; each is read as its own buffer has it."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            await client.create_topic(MARKED)
            async with client.transaction(domain="persistent") as txn:
                for topic in (ORDERS, MARKED):
                    producer = await client.producer(topic)
                    await producer.send(b"inside", txn=txn)
                    await producer.send(b"plain")
            assert await read(client, ORDERS) == [b"plain", b"inside"]
            assert await read(client, MARKED) == [b"inside", b"plain"]

    stores.run(work())


def test_a_topic_stays_with_its_sidecar(stores: Stores) -> None:
    """Configured for markers in place later, a topic is refused, also when its own log shows nothing of the sidecar."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            await producer.send(b"plain")
            given_up = client.transaction(domain="persistent")
            await given_up.begin()
            await producer.send(b"inside", txn=given_up)
            await given_up.abort()
        async with stores.open(namespaces={}) as client:
            with pytest.raises(ConfigurationError, match="sidecar"):
                await read(client, ORDERS)
        async with stores.open() as client:
            assert await read(client, ORDERS) == [b"plain"]

    stores.run(work())


def test_what_a_send_in_a_transaction_returns_is_no_id(stores: Stores) -> None:
    """A message has its id with the commit: with what its send returned nothing is acknowledged, and nobody seeks."""

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic(ORDERS)
            async with client.transaction(domain="persistent") as txn:
                sent = await (await client.producer(ORDERS)).send(b"inside", txn=txn)
            async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
                with pytest.raises(NotFound):
                    await consumer.ack(sent)
                with pytest.raises(InvalidInput, match="with the commit"):
                    await consumer.seek(sent)
                received = await consumer.receive(timeout_ms=SOON_MS)
                assert received.value == b"inside"
                await consumer.seek(received.id)
                assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"inside"

    stores.run(work())
