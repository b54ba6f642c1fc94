"""Plans use the indexes, also if the tables were empty at the last analysis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
import pytest

from txnframework.interfaces import (
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
)
from txnframework.model import (
    EARLIEST,
    Append,
    Check,
    Delete,
    EntryRange,
    Expect,
    IndexEntry,
    IndexRange,
    Intent,
    Key,
    KeyRange,
    LedgerAppend,
    Limit,
    ProducerSequence,
    Put,
    Step,
)
from txnframework.model.records import WriteOperation

if TYPE_CHECKING:
    from conftest import Stores

MANY = 1_000
# More often than the five times that a statement is planned anew.
TIMES = 8
TABLES = ("records", "index_entries", "entries", "producer_copies", "ledger_segments", "managed_ledgers")
_READ = """
SELECT relname AS name, seq_scan AS scans, seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows FROM pg_stat_user_tables
WHERE relname = ANY($1)
"""
_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def add_records(store: IMetadataStore, start: int, stop: int) -> None:
    """Create numbered records, each with an index entry."""
    puts = (
        Put(Key(f"/{number:06d}", "p"), b"", Expect.ANY, (IndexEntry("i", b"%06d" % number),))
        for number in range(start, stop)
    )
    await asyncio.gather(*(store.put(put) for put in puts))


async def add_entries(ledgers: ILedgerStore, start: int, stop: int) -> None:
    """Append numbered entries of one producer, also before a ledger exists."""
    ledger = await ledgers.create("a")
    entries = (Append(b"x", sequence=ProducerSequence("p", number, number)) for number in range(start, stop))
    await ledger.append(tuple(entries), None)


async def use(store: IMetadataStore, ledgers: ILedgerStore, first: int) -> None:
    """Perform every frequent operation in the middle of the data; ``first``: the next sequence."""
    ledger = await ledgers.open("a")
    for number in range(TIMES):
        keys = [Key(f"/{500 + number + place:06d}", "p") for place in range(4)]
        await asyncio.gather(*(store.get(key) for key in keys * 4))
        await asyncio.gather(*(store.put(Put(key, b"", Expect.ANY)) for key in keys * 4))
        await store.apply(Step((), tuple(Put(key, b"", Expect.ANY, (IndexEntry("j", b"k"),)) for key in keys)))
        ranges = [KeyRange(key.path, "0", partition) for key in keys for partition in (None, "p")]
        await asyncio.gather(*(store.scan(range_, 3) for range_ in ranges * 2))
        await store.scan_index(IndexRange("i", b"%06d" % number, b"9"), 3)
        entry = Append(b"x", sequence=ProducerSequence("p", first + number, first + number))
        (appended,) = await ledger.append((entry,), None)
        await ledger.append((entry,), None)
        await ledger.read(EntryRange(EARLIEST, appended.position), Limit(3))
        header = Check(keys[0], await store.put(Put(keys[0], b"", Expect.ANY)))
        intent = WriteOperation(branch=0, segment="a", ledger=0, after="0:0")
        announced = Intent(Key("/op", "p"), (IndexEntry("op", b"k"),), intent)
        step = Step(checks=(header,), appends=(LedgerAppend(ledger.reference, (Append(b"x"),), announced),))
        await asyncio.gather(*(store.apply(step) for _ in range(4)))
        await make_steps(store, ledger, keys)


async def make_steps(store: IMetadataStore, ledger: IManagedLedger, keys: Sequence[Key]) -> None:
    """Append by statements for one call and for several, which create, replace, check and delete records."""
    for together in (1, 3):
        steps, made_keys = [], []
        for place in range(together):
            name = f"j{together}-{place}"
            made, index = Key(f"/made/{name}", "p"), (IndexEntry("j", name.encode()),)
            made_keys.append(made)
            puts = (Put(made, b"", Expect.ABSENT, index), Put(keys[place], b"", Expect.ANY, index))
            append = LedgerAppend(ledger.reference, (Append(name.encode()),))
            steps.append(Step((Check(keys[3], Expect.ANY),), puts, appends=(append,)))
        await asyncio.gather(*(store.apply(step) for step in steps))
        vacant = (IndexRange("none", b"", b"k"),)
        gone = (Step(deletes=(Delete(made, Expect.ANY),), vacant=vacant) for made in made_keys)
        await asyncio.gather(*(store.apply(step) for step in gone))


async def figures(raw: asyncpg.Connection[asyncpg.Record]) -> dict[str, asyncpg.Record]:
    """Return the number of sequential scans and of rows read, once the statistics of all sessions are complete."""
    while await raw.fetchval(_OTHERS):
        continue
    return {found["name"]: found for found in await raw.fetch(_READ, TABLES)}


@pytest.mark.parametrize("is_analyzed", [True, False])
async def test_statements_follow_indexes(stores: Stores, is_analyzed: bool) -> None:
    """A plan that was made for a small or unknown table reads no more rows after the table has grown."""
    raw = await asyncpg.connect(stores.url)
    async with stores.metadata() as store, stores.ledgers() as ledgers:
        await add_records(store, 0, 1)
        await add_entries(ledgers, 0, 1)
    for table in TABLES:
        await raw.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        if is_analyzed:
            await raw.execute(f"VACUUM (ANALYZE) {table}")
    before = await figures(raw)
    async with stores.metadata() as store, stores.ledgers() as ledgers:
        await use(store, ledgers, 1)
        await add_records(store, 1, MANY)
        await add_entries(ledgers, TIMES + 1, MANY)
        await use(store, ledgers, MANY)
    after = await figures(raw)
    await raw.close()
    scans, rows = ({name: after[name][which] - before[name][which] for name in TABLES} for which in ("scans", "rows"))
    assert scans == dict.fromkeys(TABLES, 0)
    # The last ones are looked at for what is done with them, and the others when they are made, if at all.
    assert max(rows.values()) < 5 * MANY
