"""Decisions about a running pipeline: when it stops, what it promises, what is shown of it."""

from __future__ import annotations

import io
import json
import os
import signal

import msgspec
import pytest
from rich.console import Console

from txnframework_spark.pipeline import shown
from txnframework_spark.pipeline.analysis import guarantee, notes
from txnframework_spark.pipeline.description import Pipeline, PipelineTable, Sink, Source, SparkTable
from txnframework_spark.pipeline.progress import BatchShown, Screen, batch_of
from txnframework_spark.pipeline.stateful import Operator, stateful_operators
from txnframework_spark.pipeline.stopping import Moment, StopRequests, is_time_to_stop
from txnframework_spark.session import is_local

TOLD = Pipeline(
    pipeline=PipelineTable(name="p", checkpoint="c"),
    sources=(Source(view="a", subscribe="a", group_id="g"),),
    sinks=(Sink(topic="b"),),
)


@pytest.mark.parametrize(
    ("moment", "stops"),
    [
        (Moment(asked=0, waited_ms=0, working=False, finished=False), False),
        (Moment(asked=1, waited_ms=0, working=True, finished=False), False),
        (Moment(asked=1, waited_ms=0, working=False, finished=False), True),
        (Moment(asked=1, waited_ms=0, working=True, finished=True), True),
        (Moment(asked=1, waited_ms=100, working=True, finished=False), True),
        (Moment(asked=2, waited_ms=0, working=True, finished=False), True),
    ],
)
def test_a_batch_may_finish_unless_it_takes_too_long(moment: Moment, stops: bool) -> None:
    """Or somebody asks once more."""
    assert is_time_to_stop(moment, timeout_ms=100) is stops


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


def test_what_is_promised() -> None:
    """It rests on the checkpoint, unless subscriptions know what was read and there is no state."""
    grouped, state = guarantee(TOLD, stateful=False), guarantee(TOLD, stateful=True)
    assert "lost or older" in grouped
    assert "refuses to go on" in state
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
    assert batch_of(progress()) == BatchShown(3, "2026-01-01T00:00:00.000Z", 10, 7, 8, 1.5)
    assert batch_of(progress(durationMs={"triggerExecution": 3})) is None
    unknown = batch_of(progress(sources=[{"latestOffset": None}], observedMetrics={}))
    assert unknown is not None
    assert (unknown.behind, unknown.rows_out) == (None, 0)


def test_no_terminal_gets_a_line_for_each_batch() -> None:
    """And the sentence at the end."""
    written = io.StringIO()
    with Screen(Console(file=written, width=160), "p") as screen:
        screen.batch(BatchShown(0, "now", 1000, 7, 3, 1.25))
        screen.batch(BatchShown(1, "now", 1, 1, None, 0.5))
        screen.say(shown.ending(screen, stopped=True, given_up=True))
    assert written.getvalue().splitlines() == [
        "batch 0: 1,000 rows in, 7 rows out, 3 behind, 1.2 s",
        "batch 1: 1 rows in, 1 rows out, 0.5 s",
        "Stopped after 2 batches, 1,001 rows in, 8 rows out. The batch under way is aborted as a whole; the next start"
        " runs it again.",
    ]


def test_a_terminal_gets_a_table() -> None:
    """It ends with what was last in it."""
    written = io.StringIO()
    with Screen(Console(file=written, width=120, force_terminal=True), "p") as screen:
        screen.batch(BatchShown(0, "now", 1000, 7, 3, 1.25))
    assert "1,000" in written.getvalue()
    assert "stopped" in written.getvalue()
