"""The comparison of two deployments finds whatever differs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from copied_deployment import Deployments, Scene, urls

if TYPE_CHECKING:
    from conftest import Stores

Plant = Callable[[sqlite3.Connection], Any]
LEDGER, METADATA = "ledger", "metadata"
# The first entry that is left, in a ledger with others behind it.
ENTRY = "(SELECT min(place) FROM entries)"
RECORD = "(SELECT path FROM records WHERE path LIKE '/cursor/%' LIMIT 1)"

PLANTED = {
    "a missing entry": (LEDGER, f"DELETE FROM entries WHERE place = {ENTRY}", {"entries"}),
    "a changed byte": (
        LEDGER,
        f"UPDATE entries SET data = x'00' || substr(data, 2) WHERE place = {ENTRY}",
        {"entries"},
    ),
    "another time": (LEDGER, f"UPDATE entries SET appended_ms = appended_ms - 1 WHERE place = {ENTRY}", {"entries"}),
    "another count": (
        LEDGER,
        "UPDATE ledger_segments SET messages = messages + 1 WHERE entries > 0",
        {"shape", "entries"},
    ),
    "a lost window": (LEDGER, "DELETE FROM producer_copies WHERE producer = 'shop'", {"sequences"}),
    "another branch": (LEDGER, "UPDATE producer_copies SET branch = branch + 1 WHERE txn IS NOT NULL", {"sequences"}),
    "an opened segment": (LEDGER, "UPDATE managed_ledgers SET sealed = 0", {"shape"}),
    "another trimmed part": (LEDGER, "UPDATE managed_ledgers SET trimmed_entry_id = trimmed_entry_id + 1", {"shape"}),
    "a missing ledger": (LEDGER, "UPDATE managed_ledgers SET name = name || 'x'", {"shape", "entries", "sequences"}),
    "a missing record": (METADATA, f"DELETE FROM records WHERE path = {RECORD}", {"records"}),
    "a changed record": (METADATA, f"UPDATE records SET value = value || ' ' WHERE path = {RECORD}", {"records"}),
    "another partition": (METADATA, f"UPDATE records SET partition = 'x' WHERE path = {RECORD}", {"records"}),
    "a changed index entry": (
        METADATA,
        "UPDATE index_entries SET key = key || x'01' WHERE index_name = 'txn-by-deadline'",
        {"index"},
    ),
    "a missing index entry": (METADATA, "DELETE FROM index_entries WHERE index_name = 'writes-by-segment'", {"index"}),
    "an entry without a record": (
        METADATA,
        "INSERT INTO index_entries (index_name, key, path, partition) VALUES ('aborts-by-bound', x'01', '/x', '/x')",
        {"index"},
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_planted_difference_is_found(sqlite: Stores, tmp_path: Path, side: str, planted: str) -> None:
    """On either side, and it is named by what it is in."""
    both = Deployments(sqlite.registry, urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path))
    store, statement, kinds = PLANTED[planted]

    async with both.open("source") as client:
        await Scene().play(client)
    await both.copy(keep_source=True)
    with closing(sqlite3.connect(tmp_path / f"{side}-{store}.db")) as database, database:
        assert database.execute(statement).rowcount > 0
    report = await both.audit()
    assert {line.what for line in report.differences} == kinds
    assert report.differing == len(report.differences)
