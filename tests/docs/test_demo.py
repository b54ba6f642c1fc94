"""The demo: its verdict finds every defect, invalid usage is one sentence, and it runs on a real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from txnframework.model import State, Transaction, TxnID
from txnframework.model.transactions import Participant

DEMO = Path(__file__).parents[2] / "docs" / "examples" / "demo"
sys.path.insert(0, str(DEMO))
from faults import MEANINGS, Sizes, contradiction, make_plan  # noqa: E402 - a module of the example
from rows import ALERTS, ENRICHED, UnusableFile, read_rows  # noqa: E402
from verdict import Evidence, OutputRow, judge  # noqa: E402

EXPECTED: dict[str, dict[int, Any]] = {
    ENRICHED: {line: {"line": line, "to": ENRICHED} for line in range(1, 7)},
    ALERTS: {line: {"line": line, "to": ALERTS} for line in (2, 5)},
}
"""Two transactions: lines 1 to 3 and 4 to 6; lines 2 and 5 are alerts."""


def row(output: str, at: int, **fields: Any) -> OutputRow:
    return replace(OutputRow(output, "a" if at <= 3 else "b", at, {"line": at, "to": output}), **fields)


WHOLE = tuple(row(output, line) for output, lines in EXPECTED.items() for line in lines)
OUTCOMES = {"a": "COMMITTED", "b": "COMMITTED"}


def without(*gone: tuple[str, int]) -> tuple[OutputRow, ...]:
    return tuple(found for found in WHOLE if (found.output, found.line) not in gone)


def changed(output: str, at: int, **fields: Any) -> tuple[OutputRow, ...]:
    return (*without((output, at)), row(output, at, **fields))


@pytest.mark.parametrize(
    ("found", "defects"),
    [
        pytest.param(WHOLE, {}, id="whole"),
        pytest.param((*WHOLE, row(ENRICHED, 1)), {"duplicates": 1}, id="a row twice"),
        pytest.param((*WHOLE, *(replace(row, txn="c") for row in WHOLE[:3])), {"duplicates": 3, "torn": 1}, id="again"),
        pytest.param(without((ENRICHED, 1)), {"lost": 1}, id="a row lost"),
        pytest.param(without((ENRICHED, 2)), {"lost": 1, "torn": 1}, id="a row lost, its alert visible"),
        pytest.param(without((ALERTS, 2)), {"lost": 1, "torn": 1}, id="an alert lost"),
        pytest.param(
            without(*((ENRICHED, line) for line in (4, 5, 6)), (ALERTS, 5)), {"lost": 4}, id="a transaction lost"
        ),
        pytest.param(changed(ALERTS, 5, txn="a"), {"torn": 2}, id="an alert in another transaction"),
        pytest.param(changed(ALERTS, 5, txn=None), {"torn": 2}, id="an alert outside of transactions"),
        pytest.param(changed(ENRICHED, 3, value={"line": 3}), {"wrong": 1}, id="a wrong value"),
        pytest.param(changed(ENRICHED, 3, line=None), {"wrong": 1, "lost": 1}, id="an unreadable row"),
        pytest.param((*WHOLE, row(ALERTS, 1)), {"wrong": 1}, id="an alert too many"),
        pytest.param((*WHOLE, row(ENRICHED, 99)), {"wrong": 1}, id="a row too many"),
    ],
)
def test_every_defect_of_rows_is_found(found: tuple[OutputRow, ...], defects: Mapping[str, int]) -> None:
    findings = judge(Evidence(EXPECTED, found, (), {**OUTCOMES, "c": "COMMITTED"}))
    assert Counter(finding.kind for finding in findings) == defects


@pytest.mark.parametrize(
    ("changes", "torn"),
    [
        ({"unacknowledged": {4}}, 1),
        ({"unacknowledged": {1, 6}}, 2),
        ({"outcomes": {"a": "COMMITTED", "b": "ABORTED"}}, 1),
        ({"outcomes": {"a": "COMMITTED"}}, 1),
    ],
)
def test_every_defect_of_transactions_is_found(changes: dict[str, Any], torn: int) -> None:
    findings = judge(replace(Evidence(EXPECTED, WHOLE, (), OUTCOMES), **changes))
    assert [finding.kind for finding in findings] == ["torn"] * torn


WROTE, ACKED = Participant("segment"), Participant("segment", "group")
AT: dict[str, tuple[State | None, set[Participant]]] = {
    "planned": (None, set()),
    "mid-write": (State.OPEN, {WROTE}),
    "acks-put": (State.OPEN, {WROTE, ACKED}),
    "committed": (State.COMMITTED, set()),
}
"""The transaction of a batch at each point."""


def contradiction_at(tmp_path: Path, point: str, state: State | None, participants: set[Participant]) -> str | None:
    transaction = None
    if state is not None:
        transaction = Transaction(TxnID(1, 2), state, 0, 0, participants=frozenset(participants))
    return contradiction(f"{point}@0", tmp_path, transaction)


def test_a_kill_counts_only_at_its_point(tmp_path: Path) -> None:
    """The records of no point confirm another one; without a plan, or with a commit, they confirm none."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    assert set(AT) == set(MEANINGS)
    assert all(contradiction_at(tmp_path, point, *records) for point, records in AT.items())
    (tmp_path / "offsets" / "0").touch()
    for point in ("mid-write", "acks-put", "committed"):
        confirmed = [other for other, records in AT.items() if not contradiction_at(tmp_path, point, *records)]
        assert confirmed == [point]
    assert contradiction_at(tmp_path, "planned", *AT["planned"]) is None
    (tmp_path / "commits" / "0").touch()
    assert all(contradiction_at(tmp_path, point, *records) for point, records in AT.items())


@pytest.mark.parametrize("batches", [1, 10])
def test_every_plan_has_every_fault(batches: int) -> None:
    plan = make_plan(batches)
    assert {start.kill.partition("@")[0] for start in plan if start.kill} == set(MEANINGS)
    assert any(start.split for start in plan)
    assert any(start.lose_checkpoint and str(start.kill).startswith("committed") for start in plan)
    assert plan[-1].kill is None


def test_the_default_sizes_make_more_than_ten_batches() -> None:
    assert Sizes.of(1_501, None).plan == make_plan(10)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("1::2::3::4\n5::6::7::8\n", {1: {"user": "1", "movie": "2", "rating": "3", "timestamp": "4"}}),
        ("a,b\n\n1,ü\n", {3: {"a": "1", "b": "ü"}}),
        ('{"a": "x", "b": [1, null]}\n', {1: {"a": "x", "b": "[1, null]"}}),
    ],
)
def test_input_files(tmp_path: Path, text: str, fields: dict[int, dict[str, str]]) -> None:
    path = tmp_path / "rows"
    path.write_text(text, encoding="utf-8")
    assert {row.line: row.fields for row in read_rows(path)}.items() >= fields.items()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": has no rows"),
        ("1::2::3::4\n5::6\n", ", line 2: expected user::movie::rating::timestamp"),
        ("a,b\n1\n", ", line 2: expected as many fields as in the header"),
        ('a\n"b\n', ", line 2: not CSV: unexpected end of data"),
        ('{"a": 1}\n[]\n', ", line 2: expected a JSON object"),
        ('{"a": 1}\n{\n', ", line 2: not JSON: Expecting property name"),
    ],
)
def test_invalid_input_files_are_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnusableFile) as raised:
        read_rows(path)
    assert str(raised.value).startswith(f"{path}{reason}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(DEMO), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--input", "missing.csv"], "missing.csv: cannot be read: No such file or directory"),
        (["--directory", str(DEMO)], f"--directory: {DEMO} is not empty"),
        (["--metadata", "memory:"], "--metadata: a store in memory exists in one process only"),
        (["--ledger", "postgrex://user:secret@host/db"], "no ledger store named 'postgrex' is installed"),
        (["--metadata", "embedded-oracle"], "(installed: "),
    ],
)
def test_invalid_usage_is_one_sentence(arguments: list[str], reason: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "secret" not in lines[0]


def test_a_few_rows_survive_every_fault(tmp_path: Path) -> None:
    """With few batches, all faults hit the first one; the stores are one file."""
    path = tmp_path / "rows.csv"
    path.write_text("name\n" + "".join(f"row {line}\n" for line in range(60)), encoding="utf-8")
    done = run("--input", str(path), "--batch-size", "15", "--directory", str(tmp_path / "demo"), "--output", "json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["ok"]
    assert outcome["outputs"]["enriched"] == {"expected": 60, "found": 60}
    assert (outcome["duplicates"], outcome["lost"], outcome["wrong"], outcome["torn"]) == (0, 0, 0, 0)
    assert [kill["point"] for kill in outcome["kills"]] == ["planned", "mid-write", "acks-put", "committed"]
    assert [split["written"] for split in outcome["split_segments"]] == [True, False]
    assert outcome["checkpoint_losses"] == 1
