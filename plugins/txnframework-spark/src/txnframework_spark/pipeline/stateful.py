"""Whether a plan keeps state in the checkpoint, so that a query which has lost it must not go on.

A sink sees rows and no plan. Who starts the query sees the plan, as Spark analysed it.
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
"""Operators that keep state for a stream below them."""

_FAMILIES: Final = ("FlatMapGroups", "TransformWithState")
"""How operators are called whose state is the user's own, in any language."""

_OF_TWO: Final = frozenset({"Join", "Intersect", "Except"})
"""Operators that keep state where two streams meet in them; a stream and a table need none."""

_BEGIN: Final = "== Analyzed Logical Plan ==\n"
_END: Final = "\n== Optimized Logical Plan =="
_ROOT: Final = re.compile(r"(?P<indent>)(?P<streaming>~?)(?P<name>\w+)")
_BELOW: Final = re.compile(r"(?P<indent>(?:[: ] {2})*[:+]- )(?P<streaming>~?)(?P<name>\w+)")
"""A line of a plan: three characters for each operator above, Spark's mark of a stream, the operator's name."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a plan; ``streaming``: it works on a stream."""

    name: str
    streaming: bool
    below: tuple[Operator, ...] = ()


def stateful_operators(plan: Operator) -> tuple[str, ...]:
    """Return the names of the operators that keep state, each once; none: the plan is stateless."""
    return tuple(sorted({found.name for found in _all(plan) if _keeps_state(found)}))


def plan_of(frame: DataFrame) -> Operator:
    """
    Return the plan of a streaming DataFrame as Spark analysed it.

    :raises ConfigurationError: Spark's own setting for the length of a printed plan cuts it.
    """
    # EXPLAIN is the one public way to a plan. It plans nothing that the query will run, and writes nothing.
    explained = frame.sparkSession.sql("EXPLAIN EXTENDED SELECT * FROM {frame}", frame=frame).collect()[0][0]
    plan = read_plan(explained)
    if plan is None:
        reason = "is less than the length of the plan, so that state in it cannot be seen; leave it out"
        raise ConfigurationError("spark.conf.spark.sql.maxPlanStringLength", reason)
    return plan


def read_plan(explained: str) -> Operator | None:
    """Return the analysed plan that the text of EXPLAIN EXTENDED contains; None: its end has been cut off."""
    # The last heading ends it: one before it is part of a text in the query.
    tree, heading, _ = explained.partition(_BEGIN)[2].rpartition(_END)
    if not heading:
        return None
    _columns, root, *lines = tree.split("\n")
    unclaimed: list[tuple[int, Operator]] = []
    # From the last line to the first, so that what is below an operator is known when the operator is reached.
    for found in (_ROOT.match(root), *map(_BELOW.match, lines))[::-1]:
        if found is None:
            continue  # a further line of an operator whose text has several
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
