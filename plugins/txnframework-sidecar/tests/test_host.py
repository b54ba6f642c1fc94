"""Persistent topics with the sidecar, as a program uses them, where it differs from markers in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txnframework import Client
from txnframework.errors import ConfigurationError, InvalidInput, NotFound, ReceiveTimeout
from txnframework.model import State
from txnframework_legacy.ledger_names import parse_ledger_name
from txnframework_legacy.testing import BACKENDS, HostStores, read_all
from txnframework_sidecar.ledgers import ledger_names

ORDERS, INVOICES = "persistent://public/default/orders", "persistent://public/default/invoices"
MARKED = "persistent://public/marked/orders"
SOON_MS = 60_000


@pytest.fixture(params=BACKENDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> HostStores:
    return HostStores(request.param, tmp_path, namespaces={"public/default": {"persistent": {"buffer": "sidecar"}}})


async def test_messages_of_a_transaction_are_acknowledged_one_by_one(stores: HostStores) -> None:
    """
    A waiting consumer gets a commit's messages with ids of one position and an index each, and acknowledges some; the
    others come again, and the lag counts them.
    """
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


async def test_a_repeated_send_returns_the_id_of_the_first_copy(stores: HostStores) -> None:
    """With its index, while the transaction is open, after its commit, and for a part of a batch."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        producer = await client.producer(ORDERS, name="till-7")
        async with client.transaction(domain="persistent") as txn:
            sent = await producer.send_many([b"1", b"2", b"3"], sequence_id=1, txn=txn)
            assert [one.position.batch_index for one in sent] == [0, 1, 2]
            assert await producer.send(b"2", sequence_id=2, txn=txn) == sent[1]
        assert await producer.send(b"2", sequence_id=2) == sent[1]
        assert await producer.send_many([b"1", b"2", b"3"], sequence_id=1) == sent


async def test_commits_are_read_in_their_order(stores: HostStores) -> None:
    """The order of a topic is the order of the commits, however the transactions were interleaved."""
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
        assert await read_all(client, ORDERS) == expected
    async with stores.open() as client:
        assert await read_all(client, ORDERS) == expected


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
async def test_restarted_and_compacted_while_it_is_read(stores: HostStores, time_ms: int) -> None:
    """
    A consumer that reads on over restarts, snapshots and compaction gets every committed message once, in order;
    however long messages are kept, what is beside the topic is compacted.
    """
    kept_for: dict[str, Any] = {**BUSY, "retention": {"time_ms": time_ms}}

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
                    await client.maintain()
                    row = await client.host.ledgers.open(ledger_names(ORDERS, 1).sidecar)
                    assert sum(one.entries for one in await row.ledgers(-1, 99)) <= 3, "it is compacted"
                    message = await consumer.receive(timeout_ms=SOON_MS)
                    received.append(message.value)
                    await consumer.ack(message)
            while len(received) < len(expected):
                received.append((await consumer.receive(timeout_ms=SOON_MS)).value)
            assert received == expected
    async with stores.open(**kept_for) as client:
        assert await read_all(client, ORDERS) == expected


async def test_what_is_beside_a_topic_goes_with_it(stores: HostStores) -> None:
    """A deleted topic leaves nothing beside it, and the next one of its name begins with nothing."""

    async def beside(client: Client) -> list[str]:
        return [parse_ledger_name(name)[2] for name in await client.host.ledgers.list_names("sidecar:", "", 9)]

    async with stores.open(**BUSY) as client:
        for number in range(2):
            await client.create_topic(ORDERS)
            producer = await client.producer(ORDERS)
            for _ in range(2):
                async with client.transaction(domain="persistent") as txn:
                    await producer.send_many([b"%d" % number, b"again"], txn=txn)
            async with client.transaction(domain="persistent") as large:
                for _ in range(3):
                    await producer.send(b"large", txn=large)
            await client.maintain()
            assert await read_all(client, ORDERS) == [b"%d" % number, b"again"] * 2 + [b"large"] * 3
            assert await beside(client) == ["", "compacted", f"own-{large.id}", "snapshots"]
            await client.delete_topic(ORDERS, force=True)
            assert await beside(client) == []


async def test_a_topic_is_compacted_in_either_order(stores: HostStores) -> None:
    """What the client compacts of a topic holds the committed messages of each key, whichever order is asked for."""
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


async def test_a_namespace_has_its_own_buffer(stores: HostStores) -> None:
    """One transaction writes to topics of both buffers; each is read as its own buffer has it."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        await client.create_topic(MARKED)
        async with client.transaction(domain="persistent") as txn:
            for topic in (ORDERS, MARKED):
                producer = await client.producer(topic)
                await producer.send(b"inside", txn=txn)
                await producer.send(b"plain")
        assert await read_all(client, ORDERS) == [b"plain", b"inside"]
        assert await read_all(client, MARKED) == [b"inside", b"plain"]


async def test_a_topic_stays_with_its_sidecar(stores: HostStores) -> None:
    """Configured for markers in place later, a topic is refused, also when its own log shows nothing of the sidecar."""
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
            await read_all(client, ORDERS)
    async with stores.open() as client:
        assert await read_all(client, ORDERS) == [b"plain"]


async def test_what_a_send_in_a_transaction_returns_is_no_id(stores: HostStores) -> None:
    """A message has its id with the commit: with what its send returned nothing is acknowledged, sought or read."""
    async with stores.open() as client:
        await client.create_topic(ORDERS)
        async with client.transaction(domain="persistent") as txn:
            sent = await (await client.producer(ORDERS)).send(b"inside", txn=txn)
        async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
            with pytest.raises(NotFound, match="with the commit"):
                await consumer.ack(sent)
            with pytest.raises(InvalidInput, match="with the commit"):
                await consumer.seek(sent)
            with pytest.raises(InvalidInput, match="with the commit"):
                await client.reader(ORDERS, start=sent)
            received = await consumer.receive(timeout_ms=SOON_MS)
            assert received.value == b"inside"
            await consumer.seek(received.id)
            assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"inside"
