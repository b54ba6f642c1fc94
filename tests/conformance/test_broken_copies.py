"""The suites detect stores that lose data when they are copied."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite
from txnframework.testing._suites._base import Suite, run_test
from txnframework_memory import MemoryLedgerStore, MemoryMetadataStore
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness


async def nothing(*_: Any) -> None:
    """Change nothing."""


async def without_index_entries(store: Any, keys: Any, items_max: int) -> Any:
    page = await scan_indexed(store, keys, items_max)
    return replace(page, records=tuple(replace(one, indexes=()) for one in page.records))


async def once_per_record(store: Any, among: Any, items_max: int) -> Any:
    page = await scan_entries(store, among, items_max)
    return replace(page, lines=tuple({line.key: line for line in page.lines}.values()))


async def with_fixed_times(store: Any, name: str, entries: Any, limit: Any) -> Any:
    return tuple(replace(one, appended_ms=1) for one in await stored_entries(store, name, entries, limit))


async def untrimmed(store: Any, name: str) -> Any:
    return replace(await ledger_shape(store, name), trimmed=None)


async def unsealed(store: Any, name: str, shape: Any) -> Any:
    return await import_ledger(store, name, replace(shape, sealed=False))


async def from_the_start(store: Any, name: str, shape: Any) -> Any:
    await import_ledger(store, name, shape)
    return shape.whole.after


async def without_branches(store: Any, name: str, sequences: Any) -> None:
    await import_sequences(store, name, tuple(replace(one, branch=None) for one in sequences))


async def in_any_order(store: Any, name: str, entries: Any) -> None:
    try:
        await import_entries(store, name, entries)
    except Exception:
        row = store._rows.find(name)
        for entry in entries:
            row._ledgers[entry.position.ledger_id].append(entry)


async def ids_only(store: Any, ledger_id: int, _: Any) -> None:
    await skip_ids(store, ledger_id, {})


async def numbers_only(store: Any, _: int, txn_numbers: Any) -> None:
    await skip_ids(store, 0, txn_numbers)


scan_indexed, scan_entries = MemoryMetadataStore.scan_indexed, MemoryMetadataStore.scan_entries
stored_entries, ledger_shape = MemoryLedgerStore.stored_entries, MemoryLedgerStore.ledger_shape
import_ledger, import_entries = MemoryLedgerStore.import_ledger, MemoryLedgerStore.import_entries
import_sequences, skip_ids = MemoryLedgerStore.import_sequences, MemoryLedgerStore.skip_ids

BROKEN = [
    (MemoryMetadataStore, "scan_indexed", without_index_entries, "test_records_with_their_entries"),
    (MemoryMetadataStore, "scan_entries", once_per_record, "test_lines_of_an_index"),
    (MemoryMetadataStore, "skip_numbers", nothing, "test_numbers_are_not_given_again"),
    (MemoryLedgerStore, "stored_entries", with_fixed_times, "test_what_is_read_is_everything"),
    (MemoryLedgerStore, "ledger_shape", untrimmed, "test_what_is_read_is_everything"),
    (MemoryLedgerStore, "ledger_shape", untrimmed, "test_a_copy_is_the_same_ledger"),
    (MemoryLedgerStore, "skip_ids", ids_only, "test_a_copy_is_the_same_ledger"),
    (MemoryLedgerStore, "import_sequences", without_branches, "test_a_copy_is_the_same_ledger"),
    (MemoryLedgerStore, "skip_ids", numbers_only, "test_a_copy_goes_on"),
    (MemoryLedgerStore, "import_sequences", nothing, "test_a_copy_goes_on"),
    (MemoryLedgerStore, "import_ledger", unsealed, "test_a_copy_of_a_special_ledger"),
    (MemoryLedgerStore, "import_ledger", from_the_start, "test_an_import_is_resumed"),
    (MemoryLedgerStore, "import_entries", in_any_order, "test_an_import_is_resumed"),
]


def arguments_of(name: str) -> dict[str, str]:
    return {"state": "sealed"} if name == "test_a_copy_of_a_special_ledger" else {}


def run(suite: type[Suite], harness: type[Any], name: str, directory: Path) -> None:
    case = type("Case", (suite,), {"harness": harness})()
    asyncio.run(run_test(case, lambda: getattr(case, name)(**arguments_of(name)), directory))


def suite_of(store: type[Any]) -> tuple[type[Suite], type[Any]]:
    if store is MemoryMetadataStore:
        return MetadataStoreSuite, MemoryMetadataHarness
    return LedgerStoreSuite, MemoryLedgerHarness


@pytest.mark.parametrize(("store", "method", "broken", "name"), BROKEN)
def test_broken_copies(
    store: type[Any], method: str, broken: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that breaks the rule fails its test; the whole store passes it."""
    suite, harness = suite_of(store)
    (tmp_path / "whole").mkdir()
    run(suite, harness, name, tmp_path / "whole")
    (tmp_path / "broken").mkdir()
    monkeypatch.setattr(store, method, broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(suite, harness, name, tmp_path / "broken")
