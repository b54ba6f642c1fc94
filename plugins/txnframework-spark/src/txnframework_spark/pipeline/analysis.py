"""Analysis of a pipeline by Spark; nothing is read or written.

It includes the detection of plans that keep state in the checkpoint: a query that has lost its state must not continue.
A sink sees rows but no plan. The process that starts the query has the plan, as Spark analysed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from txnframework.config import KeyPath
from txnframework.errors import ConfigurationError
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.frames import ANALYSING, build_output, create_views, is_harmless, open_session
from txnframework_spark.pipeline.loader import sink_options
from txnframework_spark.pipeline.python_transform import find_function
from txnframework_spark.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ALWAYS: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "GlobalLimit",
        "LocalLimit",
        "Offset",
    }
)
"""Operators that keep state if their input is a stream."""

_FAMILIES: Final = ("FlatMapGroups", "TransformWithState")
"""Prefixes of the operators with user-defined state, in any language."""

_OF_TWO: Final = frozenset({"Join", "Intersect", "Except"})
"""Operators that keep state if both inputs are streams; a stream and a table need none."""

_BEGIN: Final = "== Analyzed Logical Plan ==\n"
_END: Final = "\n== Optimized Logical Plan =="
_ROOT: Final = re.compile(r"(?P<indent>)(?P<streaming>~?)(?P<name>\w+)")
_BELOW: Final = re.compile(r"(?P<indent>(?:[: ] {2})*[:+]- )(?P<streaming>~?)(?P<name>\w+)")
"""A line of a plan: three characters for each operator above, Spark's mark of a stream, the operator's name."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a plan; ``streaming``: its input is a stream."""

    name: str
    streaming: bool
    below: tuple[Operator, ...] = ()


def stateful_operators(plan: Operator) -> tuple[str, ...]:
    """Return the names of the operators that keep state, each once; empty: the plan is stateless."""
    return tuple(sorted({found.name for found in _all(plan) if _keeps_state(found)}))


def load_plan(frame: DataFrame) -> Operator:
    """
    Return the plan of a streaming DataFrame as Spark analysed it.

    :raises ConfigurationError: Spark's setting for the length of a printed plan truncates it.
    """
    # EXPLAIN is the only public way to get a plan. It starts no query and writes nothing.
    explained = frame.sparkSession.sql("EXPLAIN EXTENDED SELECT * FROM {frame}", frame=frame).collect()[0][0]
    plan = parse_plan(explained)
    if plan is None:
        reason = "truncates the plan, so its state cannot be detected; remove it"
        raise ConfigurationError("spark.conf.spark.sql.maxPlanStringLength", reason)
    return plan


def parse_plan(explained: str) -> Operator | None:
    """Return the analysed plan in the text of EXPLAIN EXTENDED; None: its end was truncated."""
    # The last heading ends the plan: an earlier one is part of a text in the query.
    tree, heading, _ = explained.partition(_BEGIN)[2].rpartition(_END)
    if not heading:
        return None
    _columns, root, *lines = tree.split("\n")
    unclaimed: list[tuple[int, Operator]] = []
    # From the last line to the first, so that the children of an operator are known when the operator is reached.
    for found in (_ROOT.match(root), *map(_BELOW.match, lines))[::-1]:
        if found is None:
            continue  # a continuation line of an operator
        depth = len(found["indent"]) // 3
        below = []
        while unclaimed and unclaimed[-1][0] > depth:
            below.append(unclaimed.pop()[1])
        streaming = bool(found["streaming"]) or any(one.streaming for one in below)
        unclaimed.append((depth, Operator(found["name"], streaming, tuple(below))))
    return unclaimed[-1][1]


def _keeps_state(operator: Operator) -> bool:
    if not operator.streaming:
        return False
    if operator.name in _OF_TWO:
        return sum(one.streaming for one in operator.below) > 1
    return operator.name in _ALWAYS or operator.name.startswith(_FAMILIES)


def _all(operator: Operator) -> Iterator[Operator]:
    yield operator
    for one in operator.below:
        yield from _all(one)


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
    place = KeyPath(file=str(file))
    if python is not None:
        find_function(python, place / "transform" / "python")
    harmless = {name: value for name, value in pipeline.spark.conf.items() if is_harmless(name)}
    quiet = msgspec.structs.replace(pipeline, spark=msgspec.structs.replace(pipeline.spark, conf=harmless))
    with open_session(quiet, log, ANALYSING) as spark:
        if python is not None:
            return Analysis(
                {view: tuple(one.columns) for view, one in create_views(spark, pipeline, place).items()}, None, None
            )
        output = build_output(spark, pipeline, file)
        views = {source.view: tuple(spark.table(source.view).columns) for source in pipeline.sources}
        return Analysis(views, tuple(output.columns), stateful_operators(load_plan(output)))


def guarantee(pipeline: Pipeline, stateful: bool | None) -> str:
    """Return the guarantee of the pipeline's output and its conditions; ``stateful`` None: unknown."""
    if not is_transactional(pipeline):
        return "at least once: the sink writes without transactions, so the rows of a repeated batch are stored twice"
    if stateful:
        return (
            "exactly once, as long as the checkpoint is kept: it contains the state, and the pipeline refuses to start"
            " with another one"
        )
    if stateful is None:
        return (
            "exactly once, as long as the checkpoint is kept: the Python function was not called, and may keep state"
            " in the checkpoint"
        )
    if all(source.group_id is not None for source in pipeline.sources):
        return "exactly once, also with a lost or older checkpoint: the subscriptions record what was read"
    return "exactly once, as long as the checkpoint is kept: without group_id only the checkpoint records what was read"


def notes(pipeline: Pipeline, stateful: bool | None) -> tuple[str, ...]:
    """Return notes for users who run the pipeline with its real stores; ``stateful`` None: unknown."""
    found = []
    left_out = sorted(name for name in pipeline.spark.conf if not is_harmless(name))
    if left_out:
        found.append(f"these Spark settings were not used for the analysis: {', '.join(left_out)}")
    if stateful is None:
        found.append(
            "the Python function was found but not called, so its result, and whether it keeps state, are unknown"
        )
    local = is_local(pipeline.spark.master)
    if stateful and not local and "://" not in pipeline.pipeline.checkpoint:
        found.append(
            f"executors keep state in {pipeline.pipeline.checkpoint}: it must be a folder that driver and executors"
            " share"
        )
    if stateful and any(source.group_id is None for source in pipeline.sources):
        found.append("a source without group_id starts over when the checkpoint is lost")
    return tuple(found)


def is_transactional(pipeline: Pipeline) -> bool:
    """Return whether each batch is one transaction; a sink may be configured to write without transactions."""
    return SinkOptions.of_stream(sink_options(pipeline, stateful=False)).transactional
