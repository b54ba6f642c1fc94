"""The suites detect a store that does not write an intent and its entries in one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.interfaces import ILedgerStore
from txnframework.model import Applied, Delete, Step
from txnframework.testing import Harness, LedgerStoreSuite, VirtualEnvironment
from txnframework.testing._suites._base import run_test
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory.testing import MemoryLedgerHarness

whole = MemoryMetadataStore.apply


async def _in_two_steps(store: Any, step: Any, *, entries_first: bool) -> Any:
    """Check the header and read the tail, then write the entries and the operation in separate steps."""
    (append,) = step.appends
    records, row = store._records, append.ledger
    records.apply(Step(step.checks))
    tail = row.tail()
    if entries_first:
        appended = await store.link.write(lambda: row.append(append.entries, tail.open_ledger_id))
    written = await store.link.write(lambda: records.apply(Step(puts=(append.intent.put_at(tail),))))
    if not entries_first:
        appended = await store.link.write(lambda: row.append(append.entries, tail.open_ledger_id))
    return Applied(written, (appended,))


async def entries_first(store: Any, step: Any) -> Any:
    return await _in_two_steps(store, step, entries_first=True)


async def operation_first(store: Any, step: Any) -> Any:
    return await _in_two_steps(store, step, entries_first=False)


async def unchecked(store: Any, step: Any) -> Any:
    (check,) = step.checks
    return await whole(store, replace(step, checks=(replace(check, expected=store._records.get(check.key).version),)))


async def without_the_operation_of_duplicates(store: Any, step: Any) -> Any:
    done = await whole(store, step)
    if any(one.duplicate for one in done.appended[0]):
        store._records.apply(Step(deletes=tuple(Delete(one.key, one.version) for one in done.records)))
    return done


BROKEN = [
    (entries_first, "test_concurrent_calls"),
    (operation_first, "test_a_sealed_ledger_refuses_both"),
    (operation_first, "test_concurrent_calls"),
    (unchecked, "test_a_changed_header_refuses_both"),
    (without_the_operation_of_duplicates, "test_duplicates_are_reported"),
]


@pytest.mark.parametrize(("broken", "name"), BROKEN)
def test_broken_colocation(broken: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that breaks the rule fails its test; the whole store passes it."""
    case = type("Case", (LedgerStoreSuite,), {"harness": MemoryLedgerHarness})()
    (tmp_path / "whole").mkdir()
    asyncio.run(run_test(case, getattr(case, name), tmp_path / "whole"))
    (tmp_path / "broken").mkdir()
    monkeypatch.setattr(MemoryMetadataStore, "apply", broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        asyncio.run(run_test(case, getattr(case, name), tmp_path / "broken"))


class UntestedHarness(Harness[ILedgerStore]):
    """A harness of ledgers beside records that it does not declare to the suite."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._behind = MemoryLedgerHarness(directory, self.environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ILedgerStore]:
        async with self._behind.open() as opened:
            yield opened


def test_a_location_that_no_test_would_look_at(tmp_path: Path) -> None:
    """A store that keeps records and ledgers together must be tested, even if its harness does not declare it."""
    case = type("Case", (LedgerStoreSuite,), {"harness": UntestedHarness})()
    with pytest.raises(AssertionError, match="Colocated"):
        asyncio.run(run_test(case, case.test_a_location_is_that_of_records, tmp_path))
