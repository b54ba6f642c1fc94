"""Detection of plans that keep state in the checkpoint: a query that has lost its state must not continue.

A sink sees rows but no plan. The process that starts the query has the plan, as Spark analysed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txnframework.errors import ConfigurationError

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


def plan_of(frame: DataFrame) -> Operator:
    """
    Return the plan of a streaming DataFrame as Spark analysed it.

    :raises ConfigurationError: Spark's setting for the length of a printed plan truncates it.
    """
    # EXPLAIN is the only public way to get a plan. It starts no query and writes nothing.
    explained = frame.sparkSession.sql("EXPLAIN EXTENDED SELECT * FROM {frame}", frame=frame).collect()[0][0]
    plan = read_plan(explained)
    if plan is None:
        reason = "is less than the length of the plan, so that state in it cannot be seen; leave it out"
        raise ConfigurationError("spark.conf.spark.sql.maxPlanStringLength", reason)
    return plan


def read_plan(explained: str) -> Operator | None:
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
