"""The suites detect a store that does not write the entries of many ledgers and their records in one step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.model import Applied, Step
from txnframework.testing import LedgerStoreSuite
from txnframework.testing._suites._base import run_test
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory.testing import MemoryLedgerHarness

whole = MemoryMetadataStore.apply


async def _in_steps(store: Any, step: Any, *, records_first: bool) -> Any:
    """Check every condition in one step, then write each ledger and the records in a step of its own."""
    written: tuple[Any, ...] = ()
    if records_first:
        written = (await whole(store, replace(step, appends=()))).records
    appended: list[Any] = []
    for append in step.appends:
        appended += (await whole(store, Step(appends=(append,), vacant=step.vacant))).appended
    if not records_first:
        written = (await whole(store, replace(step, appends=()))).records
    return Applied(written, tuple(appended))


async def records_first(store: Any, step: Any) -> Any:
    return await _in_steps(store, step, records_first=True)


async def records_last(store: Any, step: Any) -> Any:
    return await _in_steps(store, step, records_first=False)


async def without_the_ranges(store: Any, step: Any) -> Any:
    return await whole(store, replace(step, vacant=()))


async def looking_first(store: Any, step: Any) -> Any:
    """Read the ranges in an earlier step: another process can write between this step and the writes."""
    if not step.vacant:
        return await whole(store, step)
    await whole(store, Step(vacant=step.vacant))
    for _ in range(3):
        await whole(store, Step())
    return await whole(store, replace(step, vacant=()))


async def without_branches(store: Any, step: Any) -> Any:
    plain = [
        replace(append, entries=tuple(replace(entry, branch=None) for entry in append.entries))
        for append in step.appends
    ]
    return await whole(store, replace(step, appends=tuple(plain)))


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
    monkeypatch.setattr(MemoryMetadataStore, "apply", broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        asyncio.run(run_test(case, getattr(case, name), tmp_path / "broken"))
