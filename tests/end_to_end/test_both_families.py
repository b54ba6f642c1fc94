"""One host that serves topics of both families: by domain, and by an override for a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidInput,
    ReceiveTimeout,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
)
from txnframework.model import Limit, OpenQuery, State, TxnID

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
METADATA = dict.fromkeys(LOG, "metadata")
DOMAINS = {"segment": METADATA, "persistent": LOG}
SWAPPED = {"shop/swapped": {"segment": LOG, "persistent": METADATA}}
SCALABLE, PERSISTENT = "topic://public/default/orders", "persistent://public/default/orders"
SOON_MS = 60_000
EVERYWHERE = [
    pytest.param(SCALABLE, "segment", id="segment"),
    pytest.param(PERSISTENT, "persistent", id="persistent"),
    pytest.param("topic://shop/swapped/orders", "persistent", id="segment by an override"),
    pytest.param("persistent://shop/swapped/orders", "segment", id="persistent by an override"),
]


MIXED: dict[str, Any] = {"domains": DOMAINS, "namespaces": SWAPPED}


@pytest.mark.parametrize(("topic", "domain"), EVERYWHERE)
async def test_whichever_family_serves_it(stores: Stores, topic: str, domain: str) -> None:
    """One host serves topics of each family.

    Messages are sent, acknowledged, committed and aborted, and transaction ids show the family. A caller that has only
    an id gets the outcome of its transaction.
    """
    async with stores.open(**MIXED) as client, stores.open(**MIXED) as elsewhere:
        await client.create_topic(topic)
        await client.create_topic(f"{topic}-invoices")
        orders, invoices = await client.producer(topic), await client.producer(f"{topic}-invoices")
        await orders.send_many([b"1", b"2"])
        async with await client.consumer(topic, "billing", start="earliest") as consumer:
            first, second = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)]
            kept, dropped = (client.transaction(domain=domain) for _ in range(2))
            for txn, message in ((kept, first), (dropped, second)):
                await txn.begin()
                assert txn.id.family == ("metadata" if domain == "segment" else "log")
                await invoices.send(b"for " + message.value, txn=txn)
                await consumer.ack(message, txn=txn)
            await dropped.abort()
            await kept.commit()
            again = await consumer.receive(timeout_ms=SOON_MS)
            assert (again.value, again.redelivery_count) == (b"2", 1)
            assert await stores.read(elsewhere, f"{topic}-invoices") == [b"for 1"]
            assert await elsewhere.outcome(kept.id) is State.COMMITTED
            assert await elsewhere.outcome(dropped.id) is State.ABORTED
            await consumer.ack(again)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=20)


async def test_a_family_of_one_namespace(stores: Stores) -> None:
    """A family that is configured for one namespace only is started for that namespace; a namespace has two parts."""
    topic = "persistent://shop/logged/orders"
    config: dict[str, Any] = {
        "domains": {"segment": METADATA, "persistent": METADATA},
        "namespaces": {"shop/logged": {"persistent": LOG}},
    }

    async with stores.open(**config) as client:
        await client.create_topic(topic)
        producer = await client.producer(topic)
        elsewhere = client.transaction(domain="persistent")
        await elsewhere.begin()
        with pytest.raises(TransactionDomainMismatch, match="namespace"):
            await producer.send(b"refused", txn=elsewhere)
        await elsewhere.abort()
        async with client.transaction(domain="persistent", namespace="shop/logged") as txn:
            await producer.send(b"inside", txn=txn)
        assert txn.id.family == "log"
        assert await stores.read(client, topic) == [b"inside"]
        with pytest.raises(InvalidInput, match="tenant/namespace"):
            client.transaction(namespace="logged")


async def open_in(client: Client) -> set[TxnID]:
    coordinators = await client.host.coordinators()
    return {one.txn_id for coordinator in coordinators for one in await coordinator.list_open(OpenQuery())}


async def test_rows_commit_with_the_metadata_family_only(stores: Stores) -> None:
    """The log family decides in its log, which no database transaction includes."""
    async with stores.open(**MIXED) as client:
        with pytest.raises(InvalidInput, match="metadata family"):
            async with client.transaction(commit_with=object(), domain="persistent"):
                raise AssertionError


async def test_transactions_of_both_at_once(stores: Stores) -> None:
    """Each has its own coordinator; all of them are listed, swept and settled beside each other."""
    async with stores.open(**MIXED) as client:
        opened = []
        for topic, domain in ((SCALABLE, "segment"), (PERSISTENT, "persistent")):
            await client.create_topic(topic)
            for _ in range(2):
                txn = client.transaction(domain=domain)
                await txn.begin()
                await (await client.producer(topic)).send(domain.encode(), txn=txn)
                opened.append(txn)
        assert {one.family for one in await client.host.coordinators()} == {"metadata", "log"}
        assert await open_in(client) == {one.id for one in opened}
        for txn in opened[::2]:
            await txn.commit()
        for txn in opened[1::2]:
            await client.abort(txn.id)
        await client.maintain()
        assert await open_in(client) == set()
        for txn in opened:
            await client.settle(txn.id)
        for coordinator in await client.host.coordinators():
            assert await coordinator.outstanding(None, Limit(9)) == ()
        assert await stores.read(client, SCALABLE) == [b"segment"]
        assert await stores.read(client, PERSISTENT) == [b"persistent"]


@pytest.mark.parametrize("domain", ["segment", "persistent"])
async def test_a_transaction_over_both_is_refused(stores: Stores, domain: str) -> None:
    """
    One transaction cannot take part in topics of two families: sending and acknowledging there raise, naming both, and
    the transaction can only be aborted; nothing of it is seen on either side.
    """
    own, other = (SCALABLE, PERSISTENT) if domain == "segment" else (PERSISTENT, SCALABLE)

    async with stores.open(**MIXED) as client:
        for topic in (own, other):
            await client.create_topic(topic)
        await (await client.producer(other)).send(b"there")
        consumer = await client.consumer(other, "billing", start="earliest")
        message = await consumer.receive(timeout_ms=SOON_MS)
        for step in ("send", "ack"):
            txn = client.transaction(domain=domain)
            await txn.begin()
            await (await client.producer(own)).send(b"here", txn=txn)
            producer = await client.producer(other)
            use = producer.send(b"there too", txn=txn) if step == "send" else consumer.ack(message, txn=txn)
            with pytest.raises(TransactionDomainMismatch) as refused:
                await use
            assert f"{txn.id} belongs to the {txn.id.family} family" in str(refused.value)
            with pytest.raises(TransactionHasFailedOperations):
                await txn.commit()
            assert await client.outcome(txn.id) is State.ABORTED
        assert await stores.read(client, own) == []
        assert await stores.read(client, other) == [b"there"]
        await consumer.ack(message)
        await consumer.close()


async def test_the_limit_of_the_log_family(stores: Stores) -> None:
    """If a segment is split during a transaction, ending the transaction raises EndTransactionTimeout after the
    configured time. Its messages in the old segment hold back later ones. The metadata family has no such
    limit.
    """
    async with stores.open(**MIXED, transactions={"end_timeout_ms": 50}) as client:
        for topic, domain in ((SCALABLE, "segment"), ("topic://shop/swapped/orders", "persistent")):
            await client.create_topic(topic)
            txn = client.transaction(domain=domain)
            await txn.begin()
            await (await client.producer(topic)).send(b"inside", txn=txn)
            await client.split(topic, 0)
            if domain == "segment":
                await txn.commit()
            else:
                with pytest.raises(EndTransactionTimeout) as late:
                    await txn.commit()
                assert (late.value.txn_id, late.value.timeout_ms) == (txn.id, 50)
            assert await client.outcome(txn.id) is State.COMMITTED
            assert await stores.read(client, topic) == ([b"inside"] if domain == "segment" else [])


async def test_dead_letters_of_either_family(stores: Stores) -> None:
    """Within a family a dead letter moves in one transaction; between two, it is sent and then acknowledged."""

    def domains(client: Client) -> list[str | None]:
        shared = client.host.shared_domain
        swapped = "topic://shop/swapped/orders"
        return [shared(SCALABLE), shared(PERSISTENT, swapped), shared(SCALABLE, PERSISTENT), shared(swapped)]

    async with stores.open(**MIXED) as client:
        assert domains(client) == ["segment", "persistent", None, "persistent"]
