"""Analysis of a pipeline by Spark; nothing is read or written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from txnframework.config import Place
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.frames import output_of, views_of
from txnframework_spark.pipeline.locating import locate_python
from txnframework_spark.pipeline.options import sink_options
from txnframework_spark.pipeline.session import ANALYSING, is_harmless, open_session
from txnframework_spark.pipeline.stateful import plan_of, stateful_operators
from txnframework_spark.session import is_local


@dataclass(frozen=True, slots=True)
class Analysis:
    """
    The result of an analysis: columns by view, columns of the output, and the operators that keep state.

    ``columns`` and ``stateful`` None: unknown without a call of the Python transform.
    """

    views: dict[str, tuple[str, ...]]
    columns: tuple[str, ...] | None
    stateful: tuple[str, ...] | None


def analyse(pipeline: Pipeline, file: Path, log: Path | None) -> Analysis:
    """
    Return Spark's analysis of the pipeline's sources, transform and sinks.

    No code that the file names is run: no SQL command, no Python, and no Spark setting that loads code.

    :raises ConfigurationError: Spark rejects a part of the pipeline.
    """
    python = None if pipeline.transform is None else pipeline.transform.python
    place = Place(file=str(file))
    if python is not None:
        locate_python(python, place / "transform" / "python")
    harmless = {name: value for name, value in pipeline.spark.conf.items() if is_harmless(name)}
    quiet = msgspec.structs.replace(pipeline, spark=msgspec.structs.replace(pipeline.spark, conf=harmless))
    with open_session(quiet, log, ANALYSING) as spark:
        if python is not None:
            return Analysis(
                {view: tuple(one.columns) for view, one in views_of(spark, pipeline, place).items()}, None, None
            )
        output = output_of(spark, pipeline, file)
        views = {source.view: tuple(spark.table(source.view).columns) for source in pipeline.sources}
        return Analysis(views, tuple(output.columns), stateful_operators(plan_of(output)))


def guarantee(pipeline: Pipeline, stateful: bool | None) -> str:
    """Return the guarantee of the pipeline's output and its conditions; ``stateful`` None: unknown."""
    if not is_transactional(pipeline):
        return "at least once: the sink writes without transactions, so a batch that is run again is there twice"
    if stateful:
        return (
            "exactly once, as long as the checkpoint is kept: it has the state; with another one the pipeline refuses"
            " to go on"
        )
    if stateful is None:
        return (
            "exactly once, as long as the checkpoint is kept: the Python function was not called, and may keep state"
            " there"
        )
    if all(source.group_id is not None for source in pipeline.sources):
        return "exactly once, also with a checkpoint that is lost or older: the subscriptions know what was read"
    return "exactly once, as long as the checkpoint is kept: without group_id only it knows what was read"


def notes(pipeline: Pipeline, stateful: bool | None) -> tuple[str, ...]:
    """Return notes for users who run the pipeline with its real stores; ``stateful`` None: unknown."""
    found = []
    left_out = sorted(name for name in pipeline.spark.conf if not is_harmless(name))
    if left_out:
        found.append(f"these settings of Spark were not used to look at the query: {', '.join(left_out)}")
    if stateful is None:
        found.append(
            "the Python function was found and not called, so what it returns, and whether it keeps state, is not known"
        )
    local = is_local(pipeline.spark.master)
    if stateful and not local and "://" not in pipeline.pipeline.checkpoint:
        found.append(
            f"executors keep state in {pipeline.pipeline.checkpoint}: it has to be one folder that driver and executors"
            " share"
        )
    if stateful and any(source.group_id is None for source in pipeline.sources):
        found.append("a source without group_id begins anew when the checkpoint is lost")
    return tuple(found)


def is_transactional(pipeline: Pipeline) -> bool:
    """Return whether each batch is one transaction; a sink may be configured to write without transactions."""
    return SinkOptions.of_stream(sink_options(pipeline, stateful=False)).transactional
