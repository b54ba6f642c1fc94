"""Decisions about a running pipeline: when it stops, what it promises, what is shown of it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from txnframework_spark.pipeline import output
from txnframework_spark.pipeline.analysis import Operator, guarantee, notes, parse_plan, stateful_operators
from txnframework_spark.pipeline.description import Pipeline, PipelineTable, Sink, Source, SparkTable
from txnframework_spark.pipeline.query import StopRequests, StopState, should_stop
from txnframework_spark.pipeline.screen import FinishedBatch, Screen, finished_batch
from txnframework_spark.pipeline.status import after
from txnframework_spark.progress import StateProgress
from txnframework_spark.session import is_local

TOLD = Pipeline(
    pipeline=PipelineTable(name="p", checkpoint="c"),
    sources=(Source(view="a", subscribe="a", group_id="g"),),
    sinks=(Sink(topic="b"),),
)


@pytest.mark.parametrize(
    ("moment", "stops"),
    [
        (StopState(asked=0, waited_ms=0, working=False, finished=False), False),
        (StopState(asked=1, waited_ms=0, working=True, finished=False), False),
        (StopState(asked=1, waited_ms=0, working=False, finished=False), True),
        (StopState(asked=1, waited_ms=0, working=True, finished=True), True),
        (StopState(asked=1, waited_ms=100, working=True, finished=False), True),
        (StopState(asked=2, waited_ms=0, working=True, finished=False), True),
    ],
)
def test_a_batch_may_finish_unless_it_takes_too_long(moment: StopState, stops: bool) -> None:
    """A batch may finish, unless it takes too long or the stop is requested again."""
    assert should_stop(moment, timeout_ms=100) is stops


def test_signals_are_counted_and_given_back() -> None:
    """What a signal did before, it does afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        requests.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        requests.wait(10)
        assert (requests.count, requests.first) == (2, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_state_is_where_streams_are_gathered() -> None:
    """A join of a stream with a table keeps none, nor does an aggregation of a table beside a stream."""
    stream, table = Operator("StreamingRelationV2", True), Operator("Relation", False)
    assert stateful_operators(Operator("Project", True, (stream,))) == ()
    assert stateful_operators(Operator("Join", True, (stream, table))) == ()
    assert stateful_operators(Operator("Join", True, (stream, stream))) == ("Join",)
    assert stateful_operators(Operator("Join", True, (stream, Operator("Aggregate", False, (table,))))) == ()
    deep = Operator("Project", True, (Operator("Aggregate", True, (Operator("Deduplicate", True, (stream,)),)),))
    assert stateful_operators(deep) == ("Aggregate", "Deduplicate")
    assert stateful_operators(Operator("TransformWithStateInPySpark", True, (stream,)))


EXPLAINED = """== Parsed Logical Plan ==
'Project [*]
+- 'UnresolvedRelation [view], [], false

== Analyzed Logical Plan ==
value: string
~Project [value#2]
+- ~Filter (key#3L > scalar-subquery#54 [])
   :  +- Aggregate [max(id#4L) AS max(id)#56L]
   :     +- Range (0, 3, step=1, splits=Some(1))
   +- ~Join Inner, (key#3L = key#20L)
      :- View (`a`, [a text
Aggregate of two lines#38])
      :  +- ~StreamingRelationV2 rate, [], [timestamp#0, value#1L]
      +- ~Deduplicate [a
== Optimized Logical Plan ==
]
         +- ~StreamingRelationV2 rate, [], [timestamp#21, value#22L]

== Optimized Logical Plan ==
org.apache.spark.sql.AnalysisException: Queries with streaming sources must be executed with writeStream.start();
rate
== Physical Plan ==
"""


def test_a_plan_is_read_from_what_spark_prints() -> None:
    """Texts in a query may have several lines; a table in a subquery is no stream."""
    plan = parse_plan(EXPLAINED)
    stream = Operator("StreamingRelationV2", True)
    table = Operator("Aggregate", False, (Operator("Range", False),))
    join = Operator("Join", True, (Operator("View", True, (stream,)), Operator("Deduplicate", True, (stream,))))
    assert plan == Operator("Project", True, (Operator("Filter", True, (table, join)),))
    assert stateful_operators(plan) == ("Deduplicate", "Join")


@pytest.mark.parametrize("length", [len("== Parsed"), EXPLAINED.index("~Join"), EXPLAINED.index("== Optimized")])
def test_a_plan_that_was_cut_is_not_read(length: int) -> None:
    """What is missing may keep state."""
    assert parse_plan(f"{EXPLAINED[:length]}... 99 more characters") is None


def test_what_is_promised() -> None:
    """It rests on the checkpoint, unless subscriptions know what was read and there is no state."""
    grouped, state = guarantee(TOLD, stateful=False), guarantee(TOLD, stateful=True)
    assert "lost or older" in grouped
    assert "refuses to start" in state
    alone = msgspec.structs.replace(TOLD, sources=(Source(view="a", subscribe="a"),))
    assert "without group_id" in guarantee(alone, stateful=False)
    assert notes(alone, stateful=True)


def test_a_folder_for_state_has_to_be_shared() -> None:
    """Said where executors are elsewhere and the checkpoint may be the driver's alone."""
    assert notes(TOLD, stateful=True) == ()
    cluster = msgspec.structs.replace(TOLD, spark=SparkTable(master="spark://there:7077"))
    assert notes(cluster, stateful=False) == ()
    assert "share" in notes(cluster, stateful=True)[0]
    table = msgspec.structs.replace(TOLD.pipeline, checkpoint="hdfs://there/c")
    assert notes(msgspec.structs.replace(cluster, pipeline=table), stateful=True) == ()
    assert [is_local(master) for master in ("local", "local[*]", "local-cluster[2,1,512]", "spark://a:1")] == [
        True,
        True,
        False,
        False,
    ]


def progress(**changed: object) -> dict[str, object]:
    """Return the parts of a query's progress that are looked at."""
    offset = json.dumps({"format": 1, "lag": {"messages": 4}})
    return {
        "batchId": 3,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 10,
        "durationMs": {"addBatch": 900, "triggerExecution": 1500},
        "sources": [{"latestOffset": offset}, {"latestOffset": offset}],
        "observedMetrics": {"txnframework_rows_out": {"rows": 7}},
        **changed,
    }


def test_a_batch_is_read_from_the_progress() -> None:
    """A trigger that found nothing to do is none, and who does not say its lag leaves it open."""
    assert finished_batch(progress()) == FinishedBatch(3, 10, 7, 8, 1.5)
    assert finished_batch(progress(durationMs={"triggerExecution": 3})) is None
    unknown = finished_batch(progress(sources=[{"latestOffset": None}], observedMetrics={}))
    assert unknown is not None
    assert (unknown.behind, unknown.rows_out) == (None, 0)


STATE = StateProgress("2026-01-01T00:00:00.000Z", 0, 1_234, 2_500_000)
LATE = replace(STATE, late_rows=12)


def test_the_first_row_that_is_dropped_is_warned_of() -> None:
    """Once; how many there were stands in each batch's line, with watermark and state."""
    written = io.StringIO()
    with Screen(Console(file=written, width=300), "p") as screen:
        for number, state in enumerate((STATE, LATE, LATE)):
            screen.batch(FinishedBatch(number, 5, 2, 0, 1.25, state))
    told = (
        "batch {}: 5 rows in, 2 rows out, 0 behind, 1.2 s; state 1,234 rows, 2.5 MB, watermark 2026-01-01T00:00:00.000Z"
    )
    assert written.getvalue().splitlines() == [
        told.format(0),
        "Warning: batch 1 dropped 12 rows as late, the first of this run: their time is before the watermark,"
        " 2026-01-01T00:00:00.000Z, so no result contains them. A longer watermark delay keeps such rows.",
        f"{told.format(1)}, 12 dropped as late",
        f"{told.format(2)}, 12 dropped as late",
    ]
    assert screen.rows_late == 24


def test_what_the_state_of_a_pipeline_was_is_noted_across_runs() -> None:
    first = after(None, 3, STATE)
    assert (first.batch, first.rows, first.late_rows, first.late_batch) == (3, 1_234, 0, None)
    second = after(after(first, 4, LATE), 5, STATE)
    assert (second.batch, second.late_rows, second.late_batch) == (5, 12, 4)


def test_each_batch_gets_a_line() -> None:
    """And the sentence at the end."""
    written = io.StringIO()
    with Screen(Console(file=written, width=160), "p") as screen:
        screen.batch(FinishedBatch(0, 1000, 7, 3, 1.25))
        screen.batch(FinishedBatch(1, 1, 1, None, 0.5))
        screen.say(output.ending(screen, stopped=True, given_up=True))
    assert written.getvalue().splitlines() == [
        "batch 0: 1,000 rows in, 7 rows out, 3 behind, 1.2 s",
        "batch 1: 1 rows in, 1 rows out, 0.5 s",
        "Stopped after 2 batches, 1,001 rows in, 8 rows out. "
        "The current batch was aborted; the next start runs it again.",
    ]


def test_a_terminal_also_shows_what_the_pipeline_is_doing() -> None:
    written = io.StringIO()
    with Screen(Console(file=written, width=120, force_terminal=True), "p") as screen:
        screen.batch(FinishedBatch(0, 1000, 7, 3, 1.25))
        screen.doing("waiting for data")
    assert "batch 0: 1,000 rows in" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
