"""Pipelines that are files, on a real Spark: what is analysed, and what comes out."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from txnframework.errors import ConfigurationError
from txnframework_spark.errors import PipelineFailed
from txnframework_spark.pipeline.analysis import load_plan, stateful_operators
from txnframework_spark.pipeline.command import pipeline
from txnframework_spark.pipeline.frames import build_output
from txnframework_spark.pipeline.loader import load_pipeline
from txnframework_spark.pipeline.query import PipelineStart, StopRequests, run_query
from txnframework_spark.pipeline.screen import Screen
from txnframework_spark.pipeline.status import check_topics, load_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Write = Callable[..., Path]

PASS_ON = "SELECT key, value FROM events"
COUNT = "SELECT CAST(count(*) AS STRING) AS value FROM events GROUP BY window(timestamp, '1 second')"

FUNCTIONS = """
from pyspark.sql import functions as f


def both(spark, frames):
    events = frames["events"]
    short = events.where(f.length("value") < 8)
    return {"out": events.select("key", "value"), "short ones": short.selectExpr("'short' AS value")}


def one(spark, frames):
    return frames["events"].mapInPandas(lambda parts: parts, frames["events"].schema)


def wrong(spark, frames):
    return frames["nothing"]


def nothing(spark, frames):
    return 3
"""


@pytest.fixture
def write(stores: Any) -> Write:
    """Return what writes a pipeline's file: from topic in to topic out, unless told otherwise."""

    def written(transform: str | None = None, sinks: str = '[[sinks]]\ntopic = "out"\n', source: str = "") -> Path:
        (stores.directory / "functions_of_a_pipeline.py").write_text(FUNCTIONS, encoding="utf-8")
        path: Path = stores.directory / "pipeline.toml"
        path.write_text(
            f"""
[pipeline]
name = "app"
checkpoint = "{stores.checkpoint}"
trigger = "available_now"

[stores]
metadata = "{stores.url}"

[[sources]]
view = "events"
subscribe = "in"
{source or 'group_id = "g"'}
options = {{ startingOffsets = "earliest", maxOffsetsPerTrigger = 20 }}

{"" if transform is None else f"[transform]{chr(10)}{transform}"}

{sinks}
""",
            encoding="utf-8",
        )
        return path

    return written


def sql(text: str) -> str:
    return f'sql = """{text}"""'


def run(spark: SparkSession, path: Path, reset: bool = False) -> list[str]:
    """Run a pipeline to its end; return the lines that it shows."""
    written = io.StringIO()
    with StopRequests() as requests, Screen(Console(file=written, width=160), "app") as screen:
        assert not run_query(spark, PipelineStart(load_pipeline(path), path, reset), screen, requests)
    return written.getvalue().splitlines()


def test_several_sinks_are_one_transaction_and_one_pass(spark: SparkSession, stores: Any, write: Write) -> None:
    """Each row goes where its conditions say; what is shown is what was done; the stores say how far it is."""
    stores.create("long")
    values = [f"value {number}" for number in range(30)]
    stores.publish(values)
    sinks = """
[[sinks]]
topic = "out"

[[sinks]]
topic = "long"
where = "length(value) > 7"
value = "to_json(named_struct('long', CAST(value AS STRING)))"
"""
    path = write(sql(PASS_ON), sinks)
    lines = run(spark, path)
    assert sorted(stores.read()) == sorted(values)
    assert sorted(stores.read("long")) == sorted(
        json.dumps({"long": value}, separators=(",", ":")) for value in values[10:]
    )
    shown = [re.fullmatch(r"batch (\d): (\d+) rows in, (\d+) rows out, (\d+) behind, .* s", line) for line in lines]
    numbers = [tuple(map(int, found.groups())) for found in shown if found is not None]
    assert [number for number, *_ in numbers] == [0, 1]
    assert (sum(rows for _, rows, _, _ in numbers), sum(rows for _, _, rows, _ in numbers)) == (30, 50)
    assert [behind for *_, behind in numbers] == [30 - numbers[0][1], 0]
    assert len({row.txn for row in stores.rows("out", "long")}) == 2
    status = asyncio.run(load_status(load_pipeline(path)))
    assert status.application is not None
    assert status.application.committed[-1].version == 1
    assert status.open is None
    assert [sum(one.messages for one in source.lag or ()) for source in status.sources] == [0]


def test_a_function_makes_what_sinks_call_by_name(spark: SparkSession, stores: Any, write: Write) -> None:
    """It lies beside the file; Python of its own runs in executors."""
    stores.create("short ones".replace(" ", "-"))
    stores.publish(["value 1", "value 10"])
    sinks = '[[sinks]]\ntopic = "out"\n\n[[sinks]]\ntopic = "short-ones"\nframe = "short ones"\n'
    run(spark, write('python = "functions_of_a_pipeline:both"', sinks))
    assert stores.read() == {"value 1": 1, "value 10": 1}
    assert stores.read("short-ones") == {"short": 1}
    stores.publish(["value 2"])
    shutil.rmtree(stores.checkpoint)  # it belongs to the plan before: that one has the source twice
    run(spark, write('python = "functions_of_a_pipeline:one"'))
    assert stores.read()["value 2"] == 1


def test_rows_that_are_dropped_as_late_are_told(spark: SparkSession, stores: Any, write: Write) -> None:
    """While it runs, with watermark and state, and by the stores alone afterwards."""
    path = write(sql(COUNT), source='group_id = "g"\nwatermark = { column = "timestamp", delay = "1 second" }')
    stores.publish(["one"], published_ms=100_000)
    assert not any("late" in line for line in run(spark, path))
    stores.publish(["late"], published_ms=5_000)
    lines = run(spark, path)
    warned = [line for line in lines if line.startswith("Warning: ")]
    assert len(warned) == 1
    assert "dropped 1 row as late" in warned[0]
    assert "the watermark, 1970-01-01T00:01:39.000Z" in warned[0]
    assert any("state 1 rows" in line and line.endswith("1 dropped as late") for line in lines)
    told = CliRunner().invoke(pipeline, ["status", str(path), "--output", "json"])
    assert told.exit_code == 0, told.output
    state = json.loads(told.stdout)["state"]
    assert (state["late_rows"], state["rows"], state["watermark"]) == (1, 1, "1970-01-01T00:01:39.000Z")
    assert state["late_batch"] is not None
    told = CliRunner().invoke(pipeline, ["status", str(path)])
    assert "Warning: rows that were later than the watermark allows" in told.output
    assert "1, the last in batch" in told.output


def test_a_stateful_pipeline_guards_its_state(spark: SparkSession, stores: Any, write: Write) -> None:
    """A pipeline with undeclared state still stops without its checkpoint, until the user lets it continue."""
    stores.publish(["one"])
    path = write(sql(COUNT), source='group_id = "g"\nwatermark = { column = "timestamp", delay = "1 second" }')
    run(spark, path)
    shutil.rmtree(stores.checkpoint)
    stores.publish(["two"])
    with pytest.raises(
        PipelineFailed,
        match=r"^pipeline app failed: the checkpoint does not belong",
    ):
        run(spark, path)
    shutil.rmtree(stores.checkpoint)
    run(spark, path, reset=True)


@pytest.mark.parametrize(
    ("query", "operators"),
    [
        (PASS_ON, ()),
        ("SELECT e.key, e.value FROM events e JOIN (SELECT 1 AS one) ON true", ()),
        (COUNT, ("Aggregate",)),
        ("SELECT DISTINCT value FROM events", ("Distinct",)),
        ("SELECT a.value FROM events a JOIN events b ON a.key = b.key", ("Join",)),
        ("WITH some AS (SELECT value FROM events LIMIT 3) SELECT * FROM some", ("GlobalLimit", "LocalLimit")),
    ],
)
def test_state_is_seen_in_the_plan(spark: SparkSession, write: Write, query: str, operators: tuple[str, ...]) -> None:
    """As Spark analyses it, under whatever names the query uses."""
    path = write(sql(query))
    assert stateful_operators(load_plan(build_output(spark, load_pipeline(path), path))) == operators


def test_a_plan_that_spark_prints_in_part_is_refused(spark: SparkSession, write: Write) -> None:
    """State could be in the rest of it, and would not be guarded."""
    output = build_output(spark, load_pipeline(path := write(sql(COUNT))), path)
    spark.conf.set("spark.sql.maxPlanStringLength", 300)
    try:
        with pytest.raises(
            ConfigurationError, match=r"^spark\.conf\.spark\.sql\.maxPlanStringLength: truncates the plan"
        ):
            load_plan(output)
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")


@pytest.mark.parametrize(
    ("transform", "sinks", "sentence"),
    [
        (sql("SELECT valu FROM events"), "", r"transform\.sql: .*`valu` cannot be resolved"),
        (sql("SELEKT 1"), "", r"transform\.sql: \[PARSE_SYNTAX_ERROR\]"),
        (sql("SELECT 'a' AS value"), "", r"transform: does not return a stream"),
        (sql("SELECT key FROM events"), "", r"sinks\[0\]\.value: is missing, and there is no column value .*key"),
        (sql("SELECT offset AS value FROM events"), "", r"sinks\[0\]\.value: has type struct<.*to_json"),
        (sql("SELECT segment AS value FROM events"), "", r"sinks\[0\]\.value: has type bigint, .*: cast it"),
        (sql(PASS_ON), "[[sinks]]\n", r"sinks\[0\]\.topic: is missing"),
        (sql(PASS_ON), '[[sinks]]\ntopic = "out"\nwhere = "valu = 1"\n', r"sinks\[0\]\.where: .*`valu`"),
        ('python = "not_there:f"', "", r"transform\.python: module not_there not found, neither in /"),
        ('python = "functions_of_a_pipeline:f"', "", r"module functions_of_a_pipeline has no function f"),
        ('python = "functions_of_a_pipeline:wrong"', "", r"wrong failed: KeyError: 'nothing' \(functions_of_a"),
        ('python = "functions_of_a_pipeline:nothing"', "", r"nothing returned a int, expected a DataFrame"),
        ('python = "functions_of_a_pipeline:both"', "", r"sinks: no sink has frame 'short ones'"),
        (
            'python = "functions_of_a_pipeline:one"',
            '[[sinks]]\ntopic = "out"\nframe = "x"\n',
            r"no DataFrame is named 'x'",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_place(
    spark: SparkSession, write: Write, transform: str, sinks: str, sentence: str
) -> None:
    """Before anything is started, and without Spark's page around it."""
    path = write(transform, sinks) if sinks else write(transform)
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        build_output(spark, load_pipeline(path), path)
    assert "\n" not in str(caught.value)


COMMANDS = (
    "INSERT OVERWRITE DIRECTORY 'file://{made}' USING text SELECT 'owned'",
    "WITH some AS (SELECT 'owned' AS a) INSERT OVERWRITE DIRECTORY 'file://{made}' USING text SELECT * FROM some",
    "FROM (SELECT 'owned' AS a) INSERT OVERWRITE DIRECTORY 'file://{made}' USING text SELECT a",
    "SELECT key, value FROM events; INSERT OVERWRITE DIRECTORY 'file://{made}' USING text SELECT 'owned'",
    "SELECT 1) AS one; INSERT OVERWRITE DIRECTORY 'file://{made}' USING text (SELECT 'owned'",
    "BEGIN INSERT OVERWRITE DIRECTORY 'file://{made}' USING text SELECT 'owned'; END",
    "EXECUTE IMMEDIATE 'INSERT OVERWRITE DIRECTORY ''file://{made}'' USING text SELECT 1'",
    "/* SELECT */ CREATE TABLE owned USING text LOCATION 'file://{made}' AS SELECT 'owned' AS value",
    "CREATE OR REPLACE TEMPORARY VIEW owned AS SELECT 1",
    "SET spark.sql.owned = true",
    "ADD JAR 'file://{made}'",
    "CACHE TABLE events",
    "EXPLAIN SELECT 1",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_and_not_carried_out(
    spark: SparkSession, write: Write, tmp_path: Path, command: str
) -> None:
    """A transform is one query: whatever else Spark would do at once is left undone, also when the pipeline is run."""
    made = tmp_path / "made"
    path = write(sql(command.format(made=made)))
    for use in (lambda: build_output(spark, load_pipeline(path), path), lambda: run(spark, path)):
        with pytest.raises(
            ConfigurationError, match=r"transform\.sql: .*expected one query, .*; commands are not allowed$"
        ):
            use()
        assert not made.exists()
        assert spark.conf.get("spark.sql.owned", "unset") == "unset"
        assert not spark.catalog.tableExists("owned")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT key, value FROM events;",
        "WITH some AS (SELECT key, value FROM events) SELECT * FROM some -- the last line",
        "FROM events SELECT key, value",
        "(SELECT key, value FROM events)",
        "SELECT e.value FROM events e JOIN VALUES ('a;b') AS t(text) ON e.key = t.text",
    ],
)
def test_every_kind_of_query_is_taken(spark: SparkSession, write: Write, query: str) -> None:
    """However it begins and ends."""
    path = write(sql(query))
    assert "value" in build_output(spark, load_pipeline(path), path).columns


def test_validating_runs_nothing(write: Write, stores: Any) -> None:
    """Neither the module, nor the function, nor the package above it, nor what a setting of Spark names."""
    folder = stores.directory / "package_of_a_pipeline"
    folder.mkdir()
    said = "from pathlib import Path\nPath(__file__).with_suffix('.imported').touch()\n"
    (folder / "__init__.py").write_text(said, encoding="utf-8")
    (folder / "inner.py").write_text(f"{said}def f(spark, frames):\n    1 / 0\n", encoding="utf-8")
    path = write('python = "package_of_a_pipeline.inner:f"\n\n[spark.conf]\n"spark.plugins" = "no.such.Plugin"\n')
    command = [sys.executable, "-m", "txnframework", "pipeline", "validate", str(path), "--output", "json"]
    log = ["--spark-log", str(stores.directory / "spark.log")]
    done = subprocess.run([*command, *log], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["columns"], document["stateful"]) == (None, None)
    assert any("was found but not called" in note for note in document["notes"])
    assert any("spark.plugins" in note for note in document["notes"])
    assert sorted(one.name for one in folder.iterdir()) == ["__init__.py", "inner.py"]


def test_a_topic_that_is_not_there_is_said_without_spark(write: Write) -> None:
    """Read or written."""
    with pytest.raises(Exception, match="topic://public/default/nowhere"):
        asyncio.run(check_topics(load_pipeline(write(sql(PASS_ON), '[[sinks]]\ntopic = "nowhere"\n'))))
