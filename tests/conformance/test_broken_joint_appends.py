"""The suites notice a store that does not write the entries of many ledgers and their records in one step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.model import Batch, JointAppend, JointAppended
from txnframework.testing import LedgerStoreSuite
from txnframework.testing._suites._base import run_test
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory.testing import MemoryLedgerHarness

whole = MemoryLedgerStore.append_jointly


async def _in_steps(store: Any, request: Any, *, records_first: bool) -> Any:
    """Check every condition in one step, then write each ledger and the records in a step of its own."""
    written: tuple[Any, ...] = ()
    if records_first:
        written = (await whole(store, replace(request, appends=()))).records
    positions = []
    for append in request.appends:
        positions += (await whole(store, replace(request, appends=(append,), batch=Batch()))).positions
    if not records_first:
        written = (await whole(store, replace(request, appends=()))).records
    return JointAppended(tuple(positions), written)


async def records_first(store: Any, request: Any) -> Any:
    return await _in_steps(store, request, records_first=True)


async def records_last(store: Any, request: Any) -> Any:
    return await _in_steps(store, request, records_first=False)


async def without_the_ranges(store: Any, request: Any) -> Any:
    return await whole(store, replace(request, vacant=()))


async def looking_first(store: Any, request: Any) -> Any:
    """Look at the ranges in a step of their own, long before the writes: another process can write and look between."""
    await whole(store, replace(request, appends=(), batch=Batch()))
    for _ in range(3):
        await whole(store, JointAppend(()))
    return await whole(store, replace(request, vacant=()))


async def without_branches(store: Any, request: Any) -> Any:
    plain = [
        replace(append, entries=tuple(replace(entry, branch=None) for entry in append.entries))
        for append in request.appends
    ]
    return await whole(store, replace(request, appends=tuple(plain)))


BROKEN = [
    (records_first, "test_a_sealed_ledger_refuses_everything"),
    (records_first, "test_concurrent_steps"),
    (records_first, "test_a_cancelled_step"),
    (records_last, "test_one_record_refuses_everything"),
    (records_last, "test_one_of_many_that_compete"),
    (records_last, "test_concurrent_steps"),
    (without_the_ranges, "test_a_range_that_is_not_vacant"),
    (looking_first, "test_ranges_that_are_taken_in_a_race"),
    (without_branches, "test_it_is_as_an_append"),
]


@pytest.mark.parametrize(("broken", "name"), BROKEN)
def test_broken_joint_appends(broken: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that breaks the rule fails its test; the whole store passes it."""
    case = type("Case", (LedgerStoreSuite,), {"harness": MemoryLedgerHarness})()
    (tmp_path / "whole").mkdir()
    asyncio.run(run_test(case, getattr(case, name), tmp_path / "whole"))
    (tmp_path / "broken").mkdir()
    monkeypatch.setattr(MemoryLedgerStore, "append_jointly", broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        asyncio.run(run_test(case, getattr(case, name), tmp_path / "broken"))
