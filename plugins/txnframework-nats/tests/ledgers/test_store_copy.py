"""Managed ledgers of another store are imported: what the rules of the role, on equal times and small pages, miss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import CorruptEntry, InvalidInput
from txnframework.model import (
    Append,
    EntryRange,
    LedgerShape,
    LedgerSummary,
    Limit,
    Position,
    ProducerSequence,
    RememberedSequence,
    StoredEntry,
)
from txnframework_nats.ledgers import NatsLedgerOptions, NatsLedgerStore, open_ledger_store

NAME = "segment://public/default/imported/0000-ffff-0"
ALL = Limit(10_000, 1 << 30)
BIG = b"x" * 3_000_000


@asynccontextmanager
async def opened(url: str, **options: int) -> AsyncIterator[NatsLedgerStore]:
    """Open the ledgers like one more process."""
    store = await open_ledger_store(url, SystemEnvironment(), NatsLedgerOptions(streams=2, **options), None)
    try:
        yield store
    finally:
        await store.close()


def entries_of(ledger_id: int, *times: int, data: bytes = b"entry") -> tuple[StoredEntry, ...]:
    """Return the entries of a ledger of another store, one for each time; the first has one message, the next two."""
    return tuple(StoredEntry(Position(ledger_id, at), data, at + 1, ms) for at, ms in enumerate(times))


def shape_of(*ledgers: tuple[StoredEntry, ...], open_id: int) -> LedgerShape:
    """Return the shape of a managed ledger of these closed ledgers and an empty open one."""
    closed = (
        LedgerSummary(
            one[0].position.ledger_id,
            len(one),
            sum(entry.messages for entry in one),
            sum(len(entry.data) for entry in one),
            one[-1].appended_ms,
        )
        for one in ledgers
    )
    return LedgerShape((*closed, LedgerSummary(open_id, 0, 0, 0, 0)), False)


FIRST, SECOND = entries_of(3, 100, 100, 250, 400), entries_of(70, 400, 900, data=BIG)
SHAPE = shape_of(FIRST, SECOND, open_id=71)


async def stored(store: NatsLedgerStore) -> list[StoredEntry]:
    """Return all entries of the imported ledger."""
    found: list[StoredEntry] = []
    whole = (await store.ledger_shape(NAME)).whole
    after = whole.after
    while page := await store.stored_entries(NAME, EntryRange(after, whole.upto), ALL):
        found += page
        after = page[-1].position
    return found


@pytest.mark.parametrize("snapshot_records", [1, 1_000])
async def test_a_page_of_several_ledgers(url: str, snapshot_records: int) -> None:
    """Entries of several ledgers with their times are read, counted and found by time; an import goes on later."""
    async with opened(url, snapshot_records=snapshot_records) as store:
        await store.skip_ids(71, {})
        assert await store.import_ledger(NAME, SHAPE) == Position(3, -1)
        await store.import_entries(NAME, FIRST[:3])
    async with opened(url) as store:
        assert await store.import_ledger(NAME, SHAPE) == FIRST[2].position
        with pytest.raises(InvalidInput):
            await store.import_entries(NAME, SECOND)
        await store.import_entries(NAME, (FIRST[3], *SECOND))
    async with opened(url) as store:
        assert await store.import_ledger(NAME, SHAPE) == SECOND[1].position
        assert await stored(store) == [*FIRST, *SECOND]
        ledger = await store.open(NAME)
        whole = EntryRange(Position(3, -1), SECOND[1].position)
        for messages, last in ((1, FIRST[0]), (3, FIRST[1]), (6, FIRST[2]), (10, FIRST[3]), (13, SECOND[1])):
            counted = await ledger.count(whole, messages)
            assert (counted.upto, counted.appended_ms) == (last.position, last.appended_ms)
        for at_ms, before in (
            (0, Position(3, -1)),
            (100, Position(3, -1)),
            (101, FIRST[1].position),
            (250, FIRST[1].position),
            (251, FIRST[2].position),
            (401, SECOND[0].position),
            (901, SECOND[1].position),
        ):
            assert await ledger.find_time(at_ms) == before, at_ms
        (appended,) = await ledger.append((Append(b"next"),), 71)
        assert appended.position == Position(71, 0)


async def test_a_window_larger_than_a_message(url: str) -> None:
    """A page of a window that is too large for one message is imported, also again after a part of it was."""
    remembered = tuple(
        RememberedSequence(ProducerSequence(f"{number:03}{'p' * 4_000}", 0, 0), FIRST[0].position, None, 100)
        for number in range(600)
    )

    async with opened(url) as store:
        await store.skip_ids(71, {})
        await store.import_ledger(NAME, SHAPE)
        await store.import_entries(NAME, (*FIRST, *SECOND))
        await store.import_sequences(NAME, remembered[:100])
        await store.import_sequences(NAME, remembered)
    async with opened(url) as store:
        assert await store.remembered_sequences(NAME, None, 1_000) == remembered


async def test_ids_that_cannot_be_kept(url: str) -> None:
    """Ledger 0 is refused: here it would mean the open ledger."""
    async with opened(url) as store:
        await store.skip_ids(71, {})
        with pytest.raises(InvalidInput, match="begin with 1"):
            await store.import_ledger(NAME, shape_of(entries_of(0, 100), open_id=71))
        assert await store.list_names("", "", 1) == ()


async def test_trimmed_imports_are_removed(url: str) -> None:
    """The messages of imported ledgers are removed when they are trimmed, and those of the others are left."""
    async with opened(url) as store:
        await store.skip_ids(71, {})
        await store.import_ledger(NAME, SHAPE)
        await store.import_entries(NAME, FIRST)
        await store.import_entries(NAME, SECOND)
        ledger = await store.open(NAME)
        assert await ledger.trim(70, frozenset()) == 70
    async with opened(url) as store:
        assert await stored(store) == [*SECOND]
        ledger = await store.open(NAME)
        await ledger.append((Append(b"next"),), None)
        assert await ledger.trim(71, frozenset()) == 71
    async with opened(url) as store:
        assert [one.data for one in await stored(store)] == [b"next"]
        shards = await asyncio.gather(*(shard.describe() for shard in store._installation.shards))
        assert sum(shard["state"]["bytes"] for shard in shards if shard) < len(BIG)


async def test_ids_of_all_streams_differ(url: str) -> None:
    """
    Ledgers in different streams have different ids, also after some were skipped.

    If this fails, the ledgers cannot be copied to a store that finds entries by the id of their ledger alone.
    """
    ids: list[int] = []
    async with opened(url) as store:
        for round_ in range(2):
            for number in range(8):
                ledger = await store.create(f"{NAME}{round_}-{number}")
                await ledger.append((Append(b"entry"),), None)
                await ledger.roll()
                ids += [one.ledger_id for one in await ledger.ledgers(-1, 10)]
            last = await store.last_ledger_id()
            assert max(ids) <= last
            await store.skip_ids(last, {})
    assert len(ids) == len(set(ids))
    assert min(ids[16:]) > max(ids[:16])


async def test_ids_that_were_not_skipped(url: str) -> None:
    """An import whose ledgers could get the id of a later one is refused."""
    async with opened(url) as store:
        await store.skip_ids(70, {})
        with pytest.raises(InvalidInput, match="was not skipped"):
            await store.import_ledger(NAME, SHAPE)
        assert await store.list_names("", "", 10) == ()


async def test_a_missing_entry_is_named(url: str) -> None:
    """A comparison names the first entry that the servers have lost."""
    async with opened(url, cache_bytes_max=0) as store:
        ledger = await store.create(NAME)
        appended = [(await ledger.append((Append(b"entry"),), None))[0] for _ in range(3)]
        log = (await store._log(NAME)).log
        await store.requests.purge(log.subjects.stream, log.subjects.records, log.state.number)
        with pytest.raises(CorruptEntry) as caught:
            await stored(store)
        assert caught.value.position == appended[0].position
