"""Appends of one turn of the event loop share their steps in SQLite, with the effect of separate appends."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence

import pytest

from txnframework.errors import LedgerClosed, LedgerNotFound, LedgerSealed, OutcomeUnknown
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Branch,
    EntryRange,
    Limit,
    Position,
    ProducerSequence,
    TxnID,
)
from txnframework.testing import VirtualEnvironment
from txnframework_sql import LedgerOptions, SqlLedgerStore, SqlManagedLedger, open_ledger_store
from txnframework_sql.schema import metadata
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.statements import Row, Steps, rows

LEDGERS = ("a", "b", "c", "d")
SMALL = LedgerOptions(ledger_entries_max=7, deduplication_window_sequences=70)
SURROGATE = "\ud800"

Call = tuple[int, tuple[Append, ...], int | None]
"""The number of a ledger, and the arguments of its ``append``."""


async def opened(url: str, options: LedgerOptions = SMALL) -> tuple[SqlLedgerStore, list[SqlManagedLedger]]:
    """Open a store with some ledgers."""
    store = await open_ledger_store(url, VirtualEnvironment(), options, "same")
    found = [await store.create(name) for name in LEDGERS]
    return store, [ledger for ledger in found if isinstance(ledger, SqlManagedLedger)]


def entry(rng: random.Random, earlier: Sequence[Position]) -> Append:
    """Return an entry that may have an earlier copy, or replace one."""
    first = rng.randrange(90)
    length = rng.choice((1, 1, 1, 2, 40))
    return Append(
        bytes(rng.randrange(5)),
        length,
        rng.choice((None, Branch(TxnID(0, rng.randrange(1, 20)), rng.randrange(2)))),
        rng.choice((None, *2 * (ProducerSequence(rng.choice("pq"), first, first + length - 1),))),
        rng.choice((None, None, *earlier[-3:])),
    )


def calls(rng: random.Random, open_ids: Sequence[int], earlier: Sequence[Position]) -> list[Call]:
    """Return calls of one turn."""
    made: list[Call] = []
    for _ in range(rng.randrange(1, 9)):
        number = rng.randrange(len(LEDGERS))
        entries = tuple(entry(rng, earlier) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
        made.append((number, entries, rng.choice((open_ids[number], open_ids[number], open_ids[number] + 1))))
    return made


def shown(answer: tuple[Appended, ...] | BaseException) -> object:
    """Return an answer in a form that can be compared."""
    return (type(answer), str(answer)) if isinstance(answer, BaseException) else answer


async def stored(store: SqlLedgerStore) -> dict[str, list[Row]]:
    """Return all rows of the ledgers."""

    def read() -> Steps[dict[str, list[Row]]]:
        found: dict[str, list[Row]] = {}
        for name in ("managed_ledgers", "ledger_segments", "entries", "producer_copies", "highest_txn_numbers"):
            found[name] = sorted((yield from rows(metadata.tables[name].select())), key=repr)
        return found

    return await store.database.read(read)


@pytest.mark.parametrize("seed", range(12))
async def test_same_effect_as_separate_appends(url: str, seed: int) -> None:
    """Positions, copies, refusals and all rows are those of the same calls one after the other."""
    rng = random.Random(seed)
    together, shared = await opened(url)
    apart, single = await opened(url.replace("txn.db", "apart.db"))
    assert apart.database.shown_url != together.database.shown_url
    earlier: list[Position] = []
    open_ids = [(await ledger.tail()).open_ledger_id for ledger in single]
    kinds: set[object] = set()
    for turn in range(25):
        made = calls(rng, open_ids, earlier)
        answers = await asyncio.gather(
            *(shared[number].append(*call) for number, *call in made), return_exceptions=True
        )
        expected: list[tuple[Appended, ...] | BaseException] = []
        for number, *call in made:
            expected += await asyncio.gather(single[number].append(*call), return_exceptions=True)
        assert [*map(shown, answers)] == [*map(shown, expected)]
        for answer in expected:
            kinds.add(type(answer))
            if isinstance(answer, tuple):
                earlier += [one.position for one in answer]
                kinds.update(one.duplicate for one in answer)
        assert await stored(together) == await stored(apart)
        tails = await asyncio.gather(*(ledger.tail() for ledger in single), return_exceptions=True)
        assert [*map(str, tails)] == [
            *map(str, await asyncio.gather(*(ledger.tail() for ledger in shared), return_exceptions=True))
        ]
        open_ids = [tail.open_ledger_id if not isinstance(tail, BaseException) else 0 for tail in tails]
        if turn == 15:
            for store, ledgers in ((together, shared), (apart, single)):
                await ledgers[2].seal()
                await store.delete(LEDGERS[3], None)
    assert kinds == {tuple, LedgerClosed, LedgerSealed, LedgerNotFound, False, True}
    await together.close()
    await apart.close()


async def test_one_job_for_many_ledgers(url: str) -> None:
    """A turn of the loop costs one job and one commit, whatever the number of ledgers."""
    store = await open_ledger_store(url, VirtualEnvironment(), LedgerOptions(), None)
    ledgers = [await store.create(f"l{number}") for number in range(50)]
    assert isinstance(store.database, SqliteDatabase)
    jobs, commits = store.database.jobs_received, store.database.commits
    await asyncio.gather(*(ledger.append((Append(b"x"),), None) for ledger in ledgers))
    assert store.database.jobs_received - jobs == 1
    assert store.database.commits - commits == 1
    tails = await asyncio.gather(*(ledger.tail() for ledger in ledgers))
    assert store.database.jobs_received - jobs == 2
    assert {tail.last_confirmed.entry_id for tail in tails} == {0}
    await store.close()


class Failing(SqliteConnection):
    """A connection whose commits take effect without a reply, once ``fails`` is set."""

    fails = False

    def commit(self) -> None:
        """Commit, then fail."""
        super().commit()
        if Failing.fails:
            Failing.fails = False
            raise sqlite3.OperationalError("disk I/O error")


async def test_lost_commit(url: str) -> None:
    """When COMMIT fails, no append that shared it is confirmed; a refused one stays refused."""
    store = await open_ledger_store(url, VirtualEnvironment(), LedgerOptions(), None, Failing)
    ledgers = [await store.create(name) for name in LEDGERS]
    Failing.fails = True
    answers = await asyncio.gather(
        ledgers[0].append((Append(b"x"),), None),
        ledgers[1].append((Append(b"x"),), 12_345),
        ledgers[2].append((Append(b"x"),), None),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [OutcomeUnknown, LedgerClosed, OutcomeUnknown]
    assert answers[0] is not answers[2]
    await store.close()


async def test_invalid_value_of_one_call(url: str) -> None:
    """An entry that the database cannot store fails alone, and leaves nothing behind."""
    store, ledgers = await opened(url)
    invalid = Append(b"x", sequence=ProducerSequence(SURROGATE, 1, 1))
    first, refused, last = await asyncio.gather(
        ledgers[0].append((Append(b"x"),), None),
        ledgers[1].append((Append(b"before"), invalid), None),
        ledgers[2].append((Append(b"x"),), None),
        return_exceptions=True,
    )
    assert isinstance(refused, Exception)
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
    whole = EntryRange(EARLIEST, Position(1 << 30, 0))
    found = [len(await ledger.read(whole, Limit(10))) for ledger in ledgers[:3]]
    assert found == [1, 0, 1]
    await store.close()


async def test_cancelled_in_its_turn(url: str) -> None:
    """An append that is cancelled before its job begins is not stored; the others of its turn are."""
    store, ledgers = await opened(url)
    tasks = [asyncio.ensure_future(ledger.append((Append(b"x"),), None)) for ledger in ledgers]
    asyncio.get_running_loop().call_soon(tasks[1].cancel)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    tails = await asyncio.gather(*(ledger.tail() for ledger in ledgers))
    assert [tail.last_confirmed.entry_id for tail in tails][::2] == [0, 0]
    await store.close()
