"""What the pipeline makes of rows is what plain Python makes of them: the same input through both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.demo.expected import ALERTS, ENRICHED, expected_outputs
from txnframework_spark.demo.input import InputRow, Kind, movielens_path, read_input
from txnframework_spark.demo.pipeline import Job, open_session, reason_in, transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark = open_session(tmp_path_factory.mktemp("spark"))
    yield spark
    spark.stop()


def job(kind: Kind) -> Job:
    return Job(Path("c.toml"), Path("ck"), kind, "in", ENRICHED, ALERTS, "group", "application", 10)


def outputs(session: SparkSession, kind: Kind, rows: tuple[InputRow, ...]) -> dict[str, dict[int, Any]]:
    """What ``transform`` makes of rows, by output and line, as a consumer would get it."""
    schema = "key binary, value binary, segment bigint, ledger bigint, entry bigint, index int"
    events = session.createDataFrame([(row.key, row.to_message(), 1, 0, row.line, 2) for row in rows], schema)
    made: dict[str, dict[int, Any]] = {ENRICHED: {}, ALERTS: {}}
    for topic, key, value in transform(events, job(kind)).collect():
        document = json.loads(bytes(value))
        assert document.pop("place") == {"segment": 1, "ledger": 0, "entry": document["line"], "index": 2}
        assert bytes(key) in {row.key for row in rows}
        made[topic][document["line"]] = document
    return made


def test_the_shipped_ratings(session: SparkSession) -> None:
    """All 1,501, both outputs."""
    rows = read_input(movielens_path()).rows
    assert outputs(session, Kind.MOVIELENS, rows) == expected_outputs(Kind.MOVIELENS, rows)


def test_rows_of_any_file(session: SparkSession, tmp_path: Path) -> None:
    """Whatever JSON can hold: text beyond ASCII, escapes, empty names, nothing at all."""
    path = tmp_path / "a.jsonl"
    lines = [
        '{"A": "ü", "a": "\\"\\\\\\n", "": "x"}',
        '{"n": null, "d": {"e": [1.0, true]}}',
        "{}",
        '{"z": "\\u2028😀"}',
    ]
    path.write_text("\n".join(lines * 10), encoding="utf-8")
    rows = read_input(path).rows
    made = outputs(session, Kind.JSONL, rows)
    assert made == expected_outputs(Kind.JSONL, rows)
    assert made[ALERTS]


def test_the_reason_of_a_failure_is_its_last_line() -> None:
    """Spark wraps the traceback of a Python process into its own text."""
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "source.py", line 45, in initialOffset\n    return 1\n           ^\n'
        "txnframework.errors.Fenced: application a was taken over\n SQLSTATE: 38000\n=== Plan ===\n+- ~Project\n"
    )
    assert reason_in(text) == "txnframework.errors.Fenced: application a was taken over"
    assert reason_in("[X] no such table\nline 2\n") == "[X] no such table"
    assert reason_in("") == ""


def test_a_job_passes_through_a_command_line(tmp_path: Path) -> None:
    """Whatever the paths are called."""
    told = Job(tmp_path / "a b.toml", Path("--ck"), Kind.CSV, "in", "out", "alerts", "g", "a", 3)
    assert Job.parse(told.to_arguments()) == told
