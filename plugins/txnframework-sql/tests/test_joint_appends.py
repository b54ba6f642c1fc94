"""Appends to many ledgers in one step: full ledgers, several steps of one turn, and the number of commits."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from txnframework.interfaces import IColocatedLedger
from txnframework.model import Append, Batch, Expect, JointAppend, Key, LedgerAppend, ProducerSequence, Put
from txnframework.testing import VirtualEnvironment
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._options import LedgerOptions
from txnframework_sql.sqlite._connection import SqliteConnection

LEDGERS = 3
MANY = 64
# Old copies of a producer are searched once per this many of its sequences, or more often.
SEARCHED_EVERY = 64


async def _opened(directory: Path, options: LedgerOptions) -> tuple[SqlLedgerStore, list[IColocatedLedger]]:
    store = await open_ledger_store(f"sqlite:///{directory}/joint.db", VirtualEnvironment(), options, None)
    ledgers = []
    for number in range(LEDGERS):
        ledger = await store.create(f"ledger-{number}")
        assert IColocatedLedger.providedBy(ledger)
        ledgers.append(ledger)
    return store, ledgers


def _entry(producer: str, number: int) -> Append:
    return Append(b"%d" % number, sequence=ProducerSequence(producer, number, number))


def test_full_ledgers(tmp_path: Path) -> None:
    """A step that fills some of its ledgers opens the next ones; positions ascend, and later steps go on there."""
    asyncio.run(_fill(tmp_path))


async def _fill(tmp_path: Path) -> None:
    store, ledgers = await _opened(tmp_path, LedgerOptions(ledger_entries_max=4))
    await ledgers[0].append((Append(b"before"), Append(b"before")), None)
    seen = []
    for number in range(5):
        request = JointAppend(tuple(LedgerAppend(one.reference, (_entry("p", number),)) for one in ledgers))
        seen.append((await store.append_jointly(request)).positions)
    for at, ledger in enumerate(ledgers):
        positions = [step[at][0] for step in seen]
        assert positions == sorted(set(positions))
        assert len({one.ledger_id for one in positions}) == 2
        assert (await ledger.tail()).last_confirmed == positions[-1]
    await store.close()


def test_steps_of_one_turn_share_a_commit(tmp_path: Path) -> None:
    """Steps over the same ledgers, also those that fill them and those that touch one record, are one commit."""
    asyncio.run(_share(tmp_path))


async def _share(tmp_path: Path) -> None:
    store, ledgers = await _opened(tmp_path, LedgerOptions(ledger_entries_max=6))
    database = store.database
    before = database.commits  # type: ignore[attr-defined]
    steps = [
        store.append_jointly(
            JointAppend(
                tuple(LedgerAppend(one.reference, (_entry(f"p{number}", 1),)) for one in ledgers),
                Batch(puts=(Put(Key("/last"), b"%d" % number, Expect.ANY),)),
            )
        )
        for number in range(10)
    ]
    done = await asyncio.gather(*steps)
    assert database.commits == before + 1  # type: ignore[attr-defined]
    for at in range(LEDGERS):
        positions = [one.positions[at][0] for one in done]
        assert positions == sorted(set(positions))
    versions = [one.records[0].version for one in done]
    assert versions == sorted(set(versions))
    await store.close()


def test_old_copies_are_deleted_in_few_ledgers_at_a_time(tmp_path: Path) -> None:
    """Steps over many ledgers delete all copies that left the window, and none of them those of many ledgers."""
    asyncio.run(_slide(tmp_path))


async def _slide(tmp_path: Path) -> None:
    class Counting(SqliteConnection):
        totals: ClassVar[list[int]] = []

        def commit(self) -> None:
            """Commit, and note how many rows were changed until then."""
            self.totals.append(self.writes)
            super().commit()

    window, steps = 40, 3 * SEARCHED_EVERY
    options = LedgerOptions(deduplication_window_sequences=window, share_connection=False)
    url = f"sqlite:///{tmp_path}/joint.db"
    store = await open_ledger_store(url, VirtualEnvironment(), options, None, Counting)
    ledgers = [await store.create(f"ledger-{number}") for number in range(MANY)]
    Counting.totals.clear()
    for number in range(1, steps + 1):
        appends = []
        for ledger in ledgers:
            assert IColocatedLedger.providedBy(ledger)
            appends.append(LedgerAppend(ledger.reference, (_entry("p", number),)))
        await store.append_jointly(JointAppend(tuple(appends)))
    changed = [after - before for before, after in pairwise(Counting.totals)]
    assert len(changed) == steps - 1
    # An entry, a copy and the totals of each ledger, and the copies that one or two of them delete.
    assert max(changed) <= 3 * MANY + 2 * 2 * SEARCHED_EVERY
    for ledger in ledgers[::8]:
        kept = [number for number in range(1, steps + 1) if await ledger.find_sequence("p", number) is not None]
        assert kept == list(range(kept[0], steps + 1))
        assert window <= len(kept) < window + SEARCHED_EVERY
    await store.close()
