"""Migrations by two processes, and migrations whose process ends: the next process that uses the topic finishes
them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, values

import txnframework
from txnframework.broker.topics import migration
from txnframework.broker.topics.migration import TopicMigrations
from txnframework.errors import MigrationRefused, TxnFrameworkError
from txnframework.model.names import TopicName

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

EVERY = 7
"""The test cancels at every seventh step."""

STEPS_MIN = 20
"""Fewer steps of the loop would mean that nothing was cancelled."""


class Stopped(Exception):
    """The migrating process ends here."""


async def test_two_processes_migrate_at_the_same_time(stores: Stores) -> None:
    """Both calls succeed, and the topic has migrated once."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        sender = await client.producer(OLD)
        async with client.transaction(domain="persistent") as txn:
            await sender.send(b"1", txn=txn)
        await asyncio.gather(migrate(client), migrate(elsewhere))
        layout = await client.layout(NEW)
        assert (len(layout.segments), layout.life) == (2, 2)
        assert await values(elsewhere, OLD) == [b"1"]


async def test_used_before_the_old_record_names_it(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A process ends after it has stored the new topic's record. Users of the new name find everything there.

    They need not meet the old record, which is completed by the next user of the old name.
    """
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        sender = await client.producer(OLD)
        kept, dropped = client.transaction(domain="persistent"), client.transaction(domain="persistent")
        for txn, value in ((kept, b"kept"), (dropped, b"dropped")):
            await txn.begin()
            await sender.send(value, txn=txn)
        await kept.commit()
        await dropped.abort()
        with monkeypatch.context() as patched, suppress(Stopped):
            patched.setattr(migration.changes, "done", stop)
            await migrate(client)
        async with stores.open(**BOTH) as elsewhere:
            await elsewhere.subscribe(NEW, "late", start="earliest")
            for subscription in ("billing", "late"):
                async with await elsewhere.consumer(NEW, subscription) as consumer:
                    received = await consumer.receive(timeout_ms=SOON_MS)
                    assert received.value == b"kept"
                    async with elsewhere.transaction() as txn:
                        await consumer.ack(received, txn=txn)
                        await (await elsewhere.producer(NEW)).send(b"after", txn=txn)
            assert (await elsewhere.layout(OLD)).migration is not None
            assert await values(elsewhere, NEW) == [b"kept", b"after", b"after"]
            await sender.send(b"last")
            assert (await elsewhere.layout(OLD)).topic == TopicName.parse(NEW)


async def test_cancelled(stores: Stores) -> None:
    """A call that was cancelled at any step can be repeated: no loss, no duplicates, no partial transactions."""
    store = {"url": f"memory://cancelled-migrations-{id(stores)}"}  # where every step is one of the loop

    async with txnframework.open({"metadata": store, "ledger": store, **BOTH}, registry=stores.registry) as client:
        steps, is_done = 0, False
        while not is_done:
            steps += EVERY
            old, new = (f"{name}-{steps}" for name in (OLD, NEW))
            await client.create_topic(old)
            consumer = await client.consumer(old, "billing", start="earliest")
            sender = await client.producer(old)
            txns = [client.transaction(domain="persistent") for _ in range(3)]
            for number, txn in enumerate(txns):
                await txn.begin()
                await sender.send(b"%d" % number, txn=txn)
            await txns[0].commit()
            await txns[1].abort()
            await consumer.ack(await consumer.receive(timeout_ms=SOON_MS), txn=txns[2])
            migrating = asyncio.ensure_future(migrate(client, old, new))
            for _ in range(steps):
                await asyncio.sleep(0)
            is_done = not migrating.cancel()
            with suppress(asyncio.CancelledError):
                await migrating
            await migrate(client, old, new)
            await sender.send(b"3")
            assert await values(client, old) == [b"0", b"3"]
            received = [(await consumer.receive(timeout_ms=SOON_MS)).value for _ in range(2)]
            assert received == [b"0", b"3"]
            await consumer.close()
            with suppress(TxnFrameworkError):  # aborted by the migration
                await txns[2].abort()
        assert steps > STEPS_MIN


def stop(*_: object) -> Any:
    raise Stopped


@pytest.mark.parametrize("way", ["consumer", "subscribe", "reader", "producer", "maintain", "unsubscribe"])
async def test_the_next_user_finishes_it(stores: Stores, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A process ends right after the decision; the next user of the topic finishes the migration."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        await (await client.producer(OLD)).send(b"1")
        with monkeypatch.context() as patched, suppress(Stopped):
            patched.setattr(TopicMigrations, "finish", stop)
            await migrate(client)
        assert (await client.layout(OLD)).is_migrating
        with pytest.raises(MigrationRefused, match="decided"):
            await client.topics.migrations.withdraw(TopicName.parse(OLD))
    async with stores.open(**BOTH) as client:
        if way == "consumer":
            async with await client.consumer(OLD, "billing") as consumer:
                assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"1"
        elif way == "subscribe":
            await client.subscribe(OLD, "another", start="earliest")
        elif way == "unsubscribe":
            await client.unsubscribe(OLD, "billing")
        elif way == "reader":
            assert await values(client, OLD) == [b"1"]
        elif way == "producer":
            # A plain reader of the layout does not wait; a send does.
            await (await client.producer(OLD)).send(b"2")
        else:
            await client.maintain()
        assert (await client.layout(OLD)).topic == TopicName.parse(NEW)
