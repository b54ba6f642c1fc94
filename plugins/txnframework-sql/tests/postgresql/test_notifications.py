"""Who calls NOTIFY, which locks the whole server until its transaction is on disk, and which clients wake."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

import txnframework
from txnframework.model import Expect, Key, Put
from txnframework_sql.postgresql._notifier import Notifier
from txnframework_sql.postgresql._pool import Pool

if TYPE_CHECKING:
    from conftest import Stores

    from txnframework.interfaces import IWatch

KEY, OTHER = Key("/a"), Key("/b")
END = "the end of the test"


async def test_commits_never_notify(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its notifier switched off, a program that sends, acknowledges and commits own rows notifies nothing."""
    channels: list[str] = []
    heard: asyncio.Queue[str] = asyncio.Queue()
    notify_on = Pool.notify_on

    def note(pool: Pool, channel: str) -> None:
        channels.append(channel)
        notify_on(pool, channel)

    monkeypatch.setattr(Pool, "notify_on", note)
    monkeypatch.setattr(Notifier, "send", lambda *_: None)
    monkeypatch.setattr(Notifier, "send_anything", lambda *_: None)

    rows = await asyncpg.connect(stores.url)
    try:
        async with txnframework.open({"metadata": {"url": stores.url}}) as client:
            (channel,) = set(channels)
            await rows.add_listener(channel, lambda *arguments: heard.put_nowait(arguments[-1]))
            await rows.execute("CREATE TABLE payments (id int)")
            await client.create_topic("orders")
            async with client.producer("orders") as orders:
                await orders.send(b"outside transactions")
                async with client.transaction() as txn:
                    await orders.send(b"in a transaction", txn=txn)
                await client.transact(orders.outgoing(b"in one step"))
                async with client.consumer("orders", "billing", start="earliest") as billing:
                    await billing.ack(await billing.receive())
                    async with client.transaction() as txn:
                        await billing.ack(await billing.receive(), txn=txn)
                    async with rows.transaction():
                        await rows.execute("INSERT INTO payments VALUES (1)")
                        paid = orders.outgoing(b"paid"), billing.acknowledging(await billing.receive())
                        await client.transact(*paid, commit_with=rows)
            await rows.fetchval("SELECT pg_notify($1, $2)", channel, END)
            assert await heard.get() == END
    finally:
        await rows.close()


async def is_awake(watch: IWatch) -> bool:
    """Return whether a watch has woken, without waiting."""
    waiting = asyncio.ensure_future(watch.changed())
    for _ in range(3):
        await asyncio.sleep(0)
    is_done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return is_done


async def test_a_process_is_not_woken_by_itself(stores: Stores) -> None:
    """A watch wakes once for a commit of its own process: at once, and not again by the notification that follows."""
    async with stores.metadata() as mine, stores.metadata() as others:
        watch, later, theirs = await mine.watch(KEY), await mine.watch(OTHER), await others.watch(KEY)
        await mine.put(Put(KEY, b"1", Expect.ABSENT))
        await watch.changed()
        await theirs.changed()  # the notification is on its way to every connection
        await others.put(Put(OTHER, b"1", Expect.ABSENT))
        await later.changed()  # and the later one has arrived here
        assert not await is_awake(watch)
        await others.put(Put(KEY, b"2", Expect.ANY))
        await watch.changed()
