"""The suites notice a ledger that does not write an intent and its entries in one step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.model import Batch, Delete, IntendedAppended
from txnframework.testing import LedgerStoreSuite
from txnframework.testing._suites._base import run_test
from txnframework_memory._ledger_store import MemoryManagedLedger
from txnframework_memory.testing import MemoryLedgerHarness

whole = MemoryManagedLedger.append_intended


async def _in_two_steps(ledger: Any, request: Any, *, entries_first: bool) -> Any:
    """Check the header and read the tail, then write the entries and the operation in separate steps."""
    records, row = ledger._server.records, ledger._row
    records.apply(Batch((request.check,)))
    tail = await ledger.tail()
    operation = request.operation_at(tail)
    if entries_first:
        appended = await ledger.append(request.entries, tail.open_ledger_id)
    (record,) = await ledger.link.write(lambda: records.apply(Batch(puts=(request.put_of(operation),))))
    if not entries_first:
        appended = await ledger.link.write(lambda: row.append(request.entries, tail.open_ledger_id))
    return IntendedAppended(appended, operation, record)


async def entries_first(ledger: Any, request: Any) -> Any:
    return await _in_two_steps(ledger, request, entries_first=True)


async def operation_first(ledger: Any, request: Any) -> Any:
    return await _in_two_steps(ledger, request, entries_first=False)


async def unchecked(ledger: Any, request: Any) -> Any:
    header = ledger._server.records.get(request.check.key)
    return await whole(ledger, replace(request, check=replace(request.check, expected=header.version)))


async def without_the_operation_of_duplicates(ledger: Any, request: Any) -> Any:
    done = await whole(ledger, request)
    if any(one.duplicate for one in done.appended):
        ledger._server.records.apply(Batch(deletes=(Delete(done.record.key, done.record.version),)))
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
    """A ledger that breaks the rule fails its test; the whole ledger passes it."""
    case = type("Case", (LedgerStoreSuite,), {"harness": MemoryLedgerHarness})()
    (tmp_path / "whole").mkdir()
    asyncio.run(run_test(case, getattr(case, name), tmp_path / "whole"))
    (tmp_path / "broken").mkdir()
    monkeypatch.setattr(MemoryManagedLedger, "append_intended", broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        asyncio.run(run_test(case, getattr(case, name), tmp_path / "broken"))
