"""A console without ``--allow-changes`` writes nothing to the stores."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from console_world import TOKEN, Served, served, stores_of

from txnframework.model.transactions import Action, End


def counted_writes(world: Served, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each write to a store, also to a ledger that is opened later."""
    writes: list[str] = []
    link = type(stores_of(world.looking)[0].link)
    write = link.write

    async def counted(self: Any, *steps: Any) -> Any:
        writes.append(self.name)
        return await write(self, *steps)

    monkeypatch.setattr(link, "write", counted)
    return writes


async def prepared(world: Served, topic: str, domain: str) -> tuple[str, str, str]:
    """Leave an open transaction, and one that has committed and is not settled; return the paths of their pages."""
    client = world.client
    await client.create_topic(topic)
    await client.subscribe(topic, "billing", start="earliest")
    async with await client.producer(topic) as producer:
        await producer.send(b"1")
        consumer = await client.consumer(topic, "billing", name="worker")
        ended, left_open = (client.transaction(domain=domain) for _ in range(2))
        await ended.begin()
        await consumer.ack(await consumer.receive(), txn=ended)
        await producer.send(b"2", txn=ended)
        await left_open.begin()
        await producer.send(b"3", txn=left_open)
    await consumer.close()
    if domain == "segment":  # the log-driven family settles with its decision
        await (await client.host.coordinator()).end(End(ended.id, Action.COMMIT, operator=True))
    full = quote(str((await client.layout(topic)).topic), safe="")
    return (
        f"/subscription?topic={full}&name=billing",
        f"/topic?name={full}",
        f"/transaction?id={ended.id}",
    )


@pytest.mark.parametrize("log_family", [False, True])
async def test_no_page_writes(log_family: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the page of a subscription on which an ended transaction acknowledged; it says what it leaves out."""
    topic, domain = ("persistent://public/default/orders", "persistent") if log_family else ("orders", "segment")

    async with served(log_family=log_family, consumes=True) as world:
        paths = await prepared(world, topic, domain)
        writes = counted_writes(world, monkeypatch)
        for path in (*paths, "/", "/topics?sort=lag", "/subscriptions", "/transactions", "/processes"):
            shown = await world.page(path)
            assert not writes, (path, writes)
            if path == paths[0]:
                assert "shown with --allow-changes only" in shown
                assert "Acknowledged up to" not in shown


async def test_positions_settle_with_changes_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where changes are allowed, the page of a subscription shows its positions, and says that it settles."""
    async with served(TOKEN, consumes=True) as world:
        path, *_ = await prepared(world, "orders", "segment")
        writes = counted_writes(world, monkeypatch)
        shown = await world.page(path)
        assert "Acknowledged up to" in shown
        assert "Reading the positions settles" in shown
        assert writes
