"""Appends to many ledgers in one step: full ledgers, several steps of one turn, and the number of commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from txnframework.errors import Closed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Expect, Key, LedgerAppend, Put, Step
from txnframework.testing import VirtualEnvironment
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql._metadata_store import SqlMetadataStore

LEDGERS = 3


@asynccontextmanager
async def _opened(
    directory: Path, options: LedgerOptions
) -> AsyncIterator[tuple[SqlMetadataStore, list[IManagedLedger]]]:
    url, environment = f"sqlite:///{directory}/joint.db", VirtualEnvironment()
    records = await open_metadata_store(url, environment, MetadataOptions())
    store = await open_ledger_store(url, environment, options, None)
    yield records, [await store.create(f"ledger-{number}") for number in range(LEDGERS)]
    await store.close()
    await records.close()


def test_full_ledgers(tmp_path: Path) -> None:
    """A step that fills some of its ledgers opens the next ones; positions ascend, and later steps go on there."""
    asyncio.run(_fill(tmp_path))


async def _fill(tmp_path: Path) -> None:
    async with _opened(tmp_path, LedgerOptions(ledger_entries_max=4)) as (records, ledgers):
        await ledgers[0].append((Append(b"before"), Append(b"before")), None)
        seen = []
        for number in range(5):
            step = Step(appends=tuple(LedgerAppend(one.reference, (Append(b"%d" % number),)) for one in ledgers))
            seen.append((await records.apply(step)).appended)
        for at, ledger in enumerate(ledgers):
            positions = [step[at][0].position for step in seen]
            assert positions == sorted(set(positions))
            assert len({one.ledger_id for one in positions}) == 2
            assert (await ledger.tail()).last_confirmed == positions[-1]


def test_steps_of_one_turn_share_a_commit(tmp_path: Path) -> None:
    """Steps over the same ledgers, also those that fill them and those that touch one record, are one commit."""
    asyncio.run(_share(tmp_path))


async def _share(tmp_path: Path) -> None:
    async with _opened(tmp_path, LedgerOptions(ledger_entries_max=6)) as (records, ledgers):
        database = records.database
        before = database.commits  # type: ignore[attr-defined]
        steps = [
            records.apply(
                Step(
                    puts=(Put(Key("/last"), b"%d" % number, Expect.ANY),),
                    appends=tuple(LedgerAppend(one.reference, (Append(b"%d" % number),)) for one in ledgers),
                )
            )
            for number in range(10)
        ]
        done = await asyncio.gather(*steps)
        assert database.commits == before + 1  # type: ignore[attr-defined]
        for at in range(LEDGERS):
            positions = [one.appended[at][0].position for one in done]
            assert positions == sorted(set(positions))
        versions = [one.records[0].version for one in done]
        assert versions == sorted(set(versions))


def test_ledgers_of_another_file(tmp_path: Path) -> None:
    """A step that names a ledger of another file is refused, and writes to neither."""
    asyncio.run(_mix(tmp_path))


async def _mix(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with _opened(here, LedgerOptions()) as (records, mine), _opened(there, LedgerOptions()) as (others, theirs):
        for ledgers in ((theirs[0],), (mine[0], theirs[1])):
            appends = tuple(LedgerAppend(one.reference, (Append(b"x"),)) for one in ledgers)
            step = Step(puts=(Put(Key("/header"), b"", Expect.ABSENT),), appends=appends)
            with pytest.raises(ValueError, match="no reference of a ledger in the database of this store"):
                await records.apply(step)
        assert [await one.get(Key("/header")) for one in (records, others)] == [None, None]
        for ledger in (*mine, *theirs):
            assert (await ledger.tail()).last_confirmed.entry_id == -1


def test_a_closed_store_makes_no_step(tmp_path: Path) -> None:
    """The connection of its ledgers is still open, and not used for it."""
    asyncio.run(_close(tmp_path))


async def _close(tmp_path: Path) -> None:
    async with _opened(tmp_path, LedgerOptions()) as (records, ledgers):
        await records.close()
        with pytest.raises(Closed):
            await records.apply(Step(appends=(LedgerAppend(ledgers[0].reference, (Append(b"x"),)),)))
        assert (await ledgers[0].tail()).last_confirmed.entry_id == -1
