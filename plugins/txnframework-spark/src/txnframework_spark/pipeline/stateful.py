"""Whether a plan keeps state in the checkpoint, so that a query which has lost it must not go on.

A sink sees rows and no plan. Who starts the query sees the plan, as Spark analysed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
    """Return the plan of a DataFrame as Spark analysed it."""
    # Only the JVM knows it; this is how DataFrame.explain gets at it too.
    return _operator(frame._jdf.queryExecution().analyzed())


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


def _operator(node: Any) -> Operator:
    children = node.children()
    below = tuple(_operator(children.apply(number)) for number in range(children.size()))
    return Operator(node.nodeName(), bool(node.isStreaming()), below)
