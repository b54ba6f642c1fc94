"""Appends to many ledgers in one step: full ledgers, several steps of one turn, and the number of commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from txnframework.interfaces import IColocatedLedger
from txnframework.model import Append, Batch, Expect, JointAppend, Key, LedgerAppend, Put
from txnframework.testing import VirtualEnvironment
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._options import LedgerOptions

LEDGERS = 3


async def _opened(directory: Path, options: LedgerOptions) -> tuple[SqlLedgerStore, list[IColocatedLedger]]:
    store = await open_ledger_store(f"sqlite:///{directory}/joint.db", VirtualEnvironment(), options, None)
    ledgers = []
    for number in range(LEDGERS):
        ledger = await store.create(f"ledger-{number}")
        assert IColocatedLedger.providedBy(ledger)
        ledgers.append(ledger)
    return store, ledgers


def test_full_ledgers(tmp_path: Path) -> None:
    """A step that fills some of its ledgers opens the next ones; positions ascend, and later steps go on there."""
    asyncio.run(_fill(tmp_path))


async def _fill(tmp_path: Path) -> None:
    store, ledgers = await _opened(tmp_path, LedgerOptions(ledger_entries_max=4))
    await ledgers[0].append((Append(b"before"), Append(b"before")), None)
    seen = []
    for number in range(5):
        request = JointAppend(tuple(LedgerAppend(one.reference, (Append(b"%d" % number),)) for one in ledgers))
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
                tuple(LedgerAppend(one.reference, (Append(b"%d" % number),)) for one in ledgers),
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
