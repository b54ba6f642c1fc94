"""The server is killed during commits, with all its processes, and restarted on its data."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from writers import BY_WRITER, PARTITION, Told, append, write_pairs

from txnframework.errors import Unavailable
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import EARLIEST, Append, EntryRange, IndexRange, Key, KeyRange, LedgerEntry, Limit, Record

if TYPE_CHECKING:
    from conftest import Stores

KILLS = 3
CONFIRMED_BETWEEN_KILLS = 60
WRITERS = 8


async def all_records(store: IMetadataStore, side: str) -> list[Record]:
    found: list[Record] = []
    left: KeyRange | IndexRange | None = KeyRange(f"/{side}/", f"/{side}0", PARTITION)
    while left is not None:
        assert isinstance(left, KeyRange)
        page = await store.scan(left, 500)
        found += page.records
        left = page.resume
    return found


async def all_of_index(store: IMetadataStore) -> list[Record]:
    found: list[Record] = []
    left: KeyRange | IndexRange | None = IndexRange(BY_WRITER, b"", b"\xff")
    while left is not None:
        assert isinstance(left, IndexRange)
        page = await store.scan_index(left, 500)
        found += page.records
        left = page.resume
    return found


async def all_entries(store: ILedgerStore, name: str) -> list[LedgerEntry]:
    ledger = await store.open(name)
    upto = (await ledger.tail()).last_confirmed
    found: list[LedgerEntry] = []
    while page := await ledger.read(EntryRange(found[-1].position if found else EARLIEST, upto), Limit(500)):
        found += page
    return found


async def disturb(stores: Stores, told: Told, how: str) -> None:
    """Kill the server, or end every connection, repeatedly during writes; then let the writers finish."""
    for _ in range(KILLS):
        await told.more(CONFIRMED_BETWEEN_KILLS)
        if how == "kill":
            await asyncio.to_thread(stores.server.kill)
            await asyncio.to_thread(stores.server.start)
        else:
            assert await asyncio.to_thread(stores.disconnect_everybody)
    await told.more(CONFIRMED_BETWEEN_KILLS)
    told.is_over = True


@pytest.mark.parametrize("how", ["kill", "disconnect"])
async def test_records(stores: Stores, how: str) -> None:
    """
    Confirmed writes survive, batches are complete, the index matches, and the clients continue by themselves.

    The outcome of a write in doubt is what a later read found; no later read differs.
    """
    told = Told()
    async with AsyncExitStack() as stack, stores.metadata() as fresh:
        clients = [await stack.enter_async_context(stores.metadata()) for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(write_pairs(clients[number % 2], f"w{number}", told))
            group.create_task(disturb(stores, told, how))
        for store in (*clients, fresh):
            sides = [await all_records(store, side) for side in ("left", "right")]
            left, right = ({record.key.path[-9:]: record.value for record in side} for side in sides)
            assert left == right
            values = {record.key.path.rpartition("/")[2]: record.value.decode() for record in sides[0]}
            assert values == told.confirmed
            indexed = Counter(record.key.path for record in await all_of_index(store))
            assert indexed == Counter(record.key.path for side in sides for record in side)
    if how == "kill":
        # Otherwise the server was never in the middle of anything.
        assert told.in_doubt + told.refused


@pytest.mark.parametrize("how", ["kill", "disconnect"])
async def test_entries(stores: Stores, how: str) -> None:
    """Every confirmed entry is stored exactly once, at its confirmed position."""
    told = Told()
    async with AsyncExitStack() as stack, stores.ledgers() as fresh:
        clients = [await stack.enter_async_context(stores.ledgers(ledger_entries_max=50)) for _ in range(2)]
        await clients[0].create("shared")
        ledgers = [await client.open("shared") for client in clients]
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(append(ledgers[number % 2], f"p{number}", told))
            group.create_task(disturb(stores, told, how))
        for store in (*clients, fresh):
            found = await all_entries(store, "shared")
            assert {entry.data.decode(): str(entry.position) for entry in found} == told.confirmed
            assert len(found) == len(told.confirmed)
            positions = [entry.position for entry in found]
            assert positions == sorted(positions)


async def test_while_it_is_down(stores: Stores) -> None:
    """Reads and writes raise only Unavailable; the same client works once the server is back."""
    async with stores.metadata() as store:
        await asyncio.to_thread(stores.server.kill)
        with pytest.raises(Unavailable):
            await store.get(Key("/a"))
        with pytest.raises(Unavailable):
            await store.acquire_lease("name", "one")
        await asyncio.to_thread(stores.server.start)
        assert await store.get(Key("/a")) is None


async def test_waiting_through_it(stores: Stores) -> None:
    """A watch that waits while the server is killed wakes by itself, and receives the next change of another client."""
    told = Told()
    async with stores.metadata() as store, stores.metadata() as other:
        watch = await store.watch(KeyRange("/left/", "/left0", PARTITION))
        waiting = asyncio.create_task(watch.changed())
        await asyncio.to_thread(stores.server.kill)
        await asyncio.to_thread(stores.server.start)
        await waiting
        writing = asyncio.create_task(write_pairs(other, "w", told))
        await told.more(1)
        told.is_over = True
        await writing
        while not await all_records(store, "left"):
            await watch.changed()


async def test_everything_comes_back(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """After an outage longer than a session, the same stores lease, wake and append, and log one line each way."""
    async with stores.metadata(session_ttl_ms=900) as store, stores.ledgers() as ledgers:
        ledger = await ledgers.create("one")
        lease = await store.acquire_lease("mine", "me")
        watch = await store.watch(KeyRange("/left/", "/left0"))
        await asyncio.to_thread(stores.server.kill)
        await lease.lost()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await store.get(Key("/a"))
        await asyncio.to_thread(stores.server.start)
        again = await store.acquire_lease("mine", "me")
        assert again.fencing > lease.fencing
        await watch.changed()
        assert len(await ledger.append((Append(b"x"),), None)) == 1
        said = [record.getMessage() for record in caplog.records]
        assert [store.database.shown_url in line for line in said] == [True, True]  # type: ignore[attr-defined]
        assert ["answers again" in line.partition(";")[0] for line in said] == [False, True]
