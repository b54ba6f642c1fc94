"""One PostgreSQL database and others in it: another installation, and logins that may read none of our tables."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION as ACKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import ServerStores

SOON_MS = 60_000


@pytest.fixture
def stranger(postgresql: ServerStores) -> str:
    """A login that may connect to the database, and has no right on any table; its URL."""
    postgresql.run_sql("CREATE ROLE stranger LOGIN PASSWORD 'stranger'")
    split = urlsplit(postgresql.url)
    return split._replace(netloc=f"stranger:stranger@{split.netloc.rpartition('@')[2]}").geturl()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def channels(url: str) -> list[str]:
    """Return the channels that a stranger may try: the store's own, which it cannot know, and that of all stores."""
    from txnframework_sql.postgresql._payloads import channel_of

    async with connected(url) as admin:
        token = await admin.fetchval("SELECT value FROM store WHERE name = 'channel'")
    return ["txnframework", channel_of(token, "public")]


async def test_two_installations_in_two_schemas(postgresql: ServerStores) -> None:
    """Each receives its own messages, all of them, and never one of the other, whose ids are the same."""
    postgresql.run_sql("CREATE SCHEMA one; CREATE SCHEMA two")
    installations = [postgresql.in_schema(name) for name in ("one", "two")]

    async with installations[0].open() as one, installations[1].open() as two:
        clients = (one, two)
        for client in clients:
            await client.create_topic("t")
        consumers = [await client.consumer("t", "s", start="earliest") for client in clients]
        producers = [await client.producer("t") for client in clients]
        for turn in range(5):
            # Both wait for the event. A client that received the other's event would take it for its own.
            waiting = [asyncio.ensure_future(consumer.receive(timeout_ms=SOON_MS)) for consumer in consumers]
            await asyncio.sleep(0)
            for number in (turn % 2, 1 - turn % 2):
                await producers[number].send(f"{turn} of {number}".encode())
            for number, message in enumerate(await asyncio.gather(*waiting)):
                assert message.value == f"{turn} of {number}".encode()
                await consumers[number].ack(message)
        for number, client in enumerate(clients):
            expected = [f"{turn} of {number}".encode() for turn in range(5)]
            assert await postgresql.read(client, "t") == expected


async def test_who_listens_learns_names(postgresql: ServerStores, stranger: str) -> None:
    """By LISTEN on a store that it cannot read, a login learns which names changed, and no contents."""
    secrets = [b"a secret that is sent alone", b"a secret of a transaction", b"header-of-a-secret"]

    async with postgresql.open() as client, postgresql.open() as other, connected(stranger) as listening:
        await client.create_topic("t")
        heard: list[str] = []
        for channel in await channels(postgresql.url):
            await listening.add_listener(channel, lambda *told: heard.append(told[-1]))
        async with (
            await other.consumer("t", "s", start="earliest") as consumer,
            await client.producer("t") as producer,
        ):
            await producer.send(secrets[0], headers={"h": secrets[2]})
            async with client.transaction() as txn:
                await producer.send(secrets[1], txn=txn)
            for _ in range(2):
                await consumer.ack(await consumer.receive(timeout_ms=SOON_MS))
        # The server has sent what was notified before it answers.
        await listening.execute("SELECT 1")
        everything = "\n".join(heard)
        assert "/txn/" in everything, "it hears of the transaction by name"
        for secret in secrets:
            assert secret.decode() not in everything
            assert b64encode(secret)[4:16].decode() not in everything
        assert "COMMITTED" not in everything
        for table in ("records", "entries", "store"):
            with pytest.raises(Exception, match="permission denied"):
                await listening.fetch(f"SELECT * FROM {table}")


async def test_who_notifies_forges_nothing(postgresql: ServerStores, stranger: str) -> None:
    """Notifications of any login create no messages, commit no transaction, and hide none."""
    async with postgresql.open() as client, postgresql.open() as other, connected(stranger) as forging:
        for topic in ("t", "other"):
            await client.create_topic(topic)
        consumer = await other.consumer("t", "s", start="earliest")
        told = await other.consumer("other", "s", start="earliest")
        producer, telling = await client.producer("t"), await client.producer("other")
        await producer.send(b"first")
        await consumer.ack(await consumer.receive(timeout_ms=SOON_MS))
        names = await channels(postgresql.url)

        async def notify(payloads: list[str]) -> None:
            for channel in names:
                await forging.executemany("SELECT pg_notify($1, $2)", [(channel, payload) for payload in payloads])
            # Notifications come in their order: when this one has led to a message, the forged ones were heard.
            await telling.send(b"told")
            await told.receive(timeout_ms=SOON_MS)

        for forged in (_entries(), _flood()):
            waiting = asyncio.ensure_future(consumer.receive(timeout_ms=SOON_MS))
            txn = client.transaction()
            await txn.begin()
            await producer.send(b"never committed", txn=txn)
            await notify(_ended(str(txn.id)))
            assert not waiting.done()
            await txn.abort()
            await notify(forged)
            assert not waiting.done()
            await producer.send(b"real")
            received = await waiting
            assert received.value == b"real"
            await consumer.ack(received)
        assert await postgresql.read(client, "t") == [b"first", b"real", b"real"]


def _ended(txn: str) -> list[str]:
    """Return a notification of a commit, as earlier releases trusted it."""
    header = {
        "state": "COMMITTED",
        "timeout_ms": 9_999_999_999_999,
        "created_ms": 1,
        "finalized_ms": 2,
        "principal": "",
        "session": "",
        "branches": [0],
        "format": 2,
    }
    entries = [[["txn-by-deadline", "20"]], [["txn-by-final-state", "20"]]]
    return [json.dumps([[f"/txn/{txn}", partition, *entries, json.dumps(header)]]) for partition in (txn, None)]


def _entries() -> list[str]:
    """Return notifications of appended entries, for any ledger end in a small database."""
    data = b64encode(encode_entry((EntryMessage(b"k", b"forged", (), 99, 1),), "evil", None)).decode()
    return [
        json.dumps([[managed, ledger, place, data]])
        for place in range(6)
        for managed in range(1, 4)
        for ledger in range(1, 4)
    ]


def _flood() -> list[str]:
    """Return many notifications with unknown names and invalid contents."""
    return [json.dumps(list(range(1, 1_000)))] * 300 + ["*", "[", "[" * 7_000, '[["/txn"]]', "\u2028"] * 20


async def test_an_acknowledgment_waits_for_a_step(postgresql: ServerStores) -> None:
    """While a step of another process holds a cursor, no acknowledgment of the subscription is stored beside it."""
    async with postgresql.open() as client, connected(postgresql.url) as step:
        await client.create_topic("orders")
        async with client.consumer("orders", "billing", start="earliest") as consumer:
            async with client.producer("orders") as producer:
                await producer.send(b"1")
            message = await consumer.receive(timeout_ms=SOON_MS)
            async with client.transaction() as txn:
                # What a step does first, to the cursor of any segment.
                held = step.transaction()
                await held.start()
                await step.execute("SELECT FROM records WHERE path LIKE '/cursor/%' FOR UPDATE")
                acknowledging = asyncio.ensure_future(consumer.ack(message, txn=txn))
                while not await step.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    assert not acknowledging.done(), "it was stored while the step held the cursor"
                assert not await step.fetchval("SELECT count(*) FROM index_entries WHERE index_name = $1", ACKS)
                await held.commit()
                await acknowledging
