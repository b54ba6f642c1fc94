"""What the pipeline makes of rows is what plain Python makes of them: the same input through both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from txnframework_spark.demo.input import ALERTS, ENRICHED, InputFormat, expected_outputs, movielens_path, read_input
from txnframework_spark.demo.pipeline import DemoJob

ANY_ROWS = [
    '{"A": "ü", "a": "\\"\\\\\\n", "": "x"}',
    '{"n": null, "d": {"e": [1.0, true]}}',
    "{}",
    '{"user": "ana", "z": "\\u2028😀"}',
]


@pytest.fixture(scope="module")
def any_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_text("\n".join(ANY_ROWS * 10), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def transformed(tmp_path_factory: pytest.TempPathFactory, any_rows: Path) -> list[dict[str, Any]]:
    program = Path(__file__).parent / "transforming.py"
    scratch = tmp_path_factory.mktemp("spark")
    command = [sys.executable, str(program), str(scratch), str(movielens_path()), str(any_rows)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def outputs(transformed: list[dict[str, Any]], path: Path) -> dict[str, dict[int, Any]]:
    """The values made of one file, by output and line; where they come from is looked at here."""
    keys = {row.line: row.key.decode() for row in read_input(path).rows}
    made: dict[str, dict[int, Any]] = {ENRICHED: {}, ALERTS: {}}
    for one in transformed:
        if one["file"] == str(path):
            value = one["value"]
            assert value.pop("place") == {"segment": 1, "ledger": 0, "entry": value["line"], "index": 2}
            assert one["key"] == keys[value["line"]]
            made[one["topic"]][value["line"]] = value
    return made


def test_the_shipped_ratings(transformed: list[dict[str, Any]]) -> None:
    """All 1,501, both outputs."""
    path = movielens_path()
    assert outputs(transformed, path) == expected_outputs(InputFormat.MOVIELENS, read_input(path).rows)


def test_rows_of_any_file(transformed: list[dict[str, Any]], any_rows: Path) -> None:
    """Whatever JSON can hold: text beyond ASCII, escapes, empty names, nothing at all."""
    made = outputs(transformed, any_rows)
    assert made == expected_outputs(InputFormat.JSONL, read_input(any_rows).rows)
    assert made[ALERTS]


def test_a_job_passes_through_a_command_line(tmp_path: Path) -> None:
    """Whatever the paths are called."""
    results = DemoJob(tmp_path / "a b.toml", Path("--ck"), InputFormat.CSV, "in", "out", "alerts", "g", "a", 3)
    assert DemoJob.parse(results.to_arguments()) == results
