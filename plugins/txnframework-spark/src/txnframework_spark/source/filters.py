"""Publish times in the range that Spark supports."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from txnframework.model.positions import Position

_MS_MAX: Final = (2**63 - 1) // 1_000


def times_ms(published_ms: memoryview) -> NDArray[np.int64]:
    """Return publish times in milliseconds, clipped to the range of Spark's microseconds; senders may set any time."""
    times: NDArray[np.int64] = np.clip(np.frombuffer(published_ms, dtype=np.int64), -_MS_MAX, _MS_MAX)
    return times


Column = tuple[str, ...]

TOPIC: Final = ("topic",)
SEGMENT: Final = ("segment",)
TIMESTAMP: Final = ("timestamp",)
LEDGER: Final = ("offset", "ledger")
ENTRY: Final = ("offset", "entry")
INDEX: Final = ("offset", "index")
_NUMBERS: Final = (SEGMENT, LEDGER, ENTRY, INDEX)
_NEVER_NULL: Final = (("offset",), TOPIC, TIMESTAMP, *_NUMBERS)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: lambda text, part: text.startswith(part),
    StringEndsWith: lambda text, part: text.endswith(part),
    StringContains: lambda text, part: part in text,
}
_OF_TEXT: Final = (StringStartsWith, StringEndsWith, StringContains)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter on one column whose values are text or whole numbers (times: microseconds since 1970)."""

    column: Column
    kind: type[Filter]
    value: Any
    negated: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether the condition is true for no value or, if negated, for every value."""
        return self.kind is In and not self.value

    def holds(self, found: Any) -> bool:
        """Return whether it is true for one value."""
        if self.kind is In:
            return (found in self.value) is not self.negated
        return bool(_COMPARISONS[self.kind](found, self.value)) is not self.negated

    def among(self, found: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the values for which it is true; numbers only."""
        kept = np.isin(found, self.value) if self.kind is In else _COMPARISONS[self.kind](found, self.value)
        return ~kept if self.negated else np.asarray(kept, dtype=np.bool_)


def split_filters(filters: Iterable[Filter]) -> tuple[tuple[Condition, ...], list[Filter]]:
    """Return the conditions that are applied here, and the filters that are left to Spark."""
    conditions: list[Condition] = []
    left: list[Filter] = []
    for one in filters:
        condition = _condition(one)
        if condition is None:
            left.append(one)
        elif not (condition.is_constant and condition.negated):
            conditions.append(condition)
    return tuple(conditions), left


def _condition(given: Filter, negated: bool = False) -> Condition | None:
    if isinstance(given, Not):
        return _condition(given.child, not negated)
    column: Column = getattr(given, "attribute", ())
    if isinstance(given, IsNull | IsNotNull):
        return Condition(column, In, (), isinstance(given, IsNotNull) is not negated) if column in _NEVER_NULL else None
    if isinstance(given, In):
        values = tuple(_value(column, value) for value in given.value)
        return None if None in values else Condition(column, In, values, negated)
    if type(given) not in _COMPARISONS or (isinstance(given, _OF_TEXT) and column != TOPIC):
        return None
    value = _value(column, given.value)  # type: ignore[attr-defined]
    return None if value is None else Condition(column, type(given), value, negated)


def _value(column: Column, value: Any) -> Any:
    """Return the value to compare the column with; None: the filter is left to Spark."""
    if column == TOPIC and isinstance(value, str):
        return value
    if column in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    if column == TIMESTAMP and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return None


def may_match(conditions: Sequence[Condition], topic: str, segment: int) -> bool:
    """Return whether a segment can contain matching messages."""
    constants: dict[Column, Any] = {TOPIC: topic, SEGMENT: segment}
    return all(one.holds(constants[one.column]) for one in conditions if one.column in constants) and not any(
        one.is_constant for one in conditions
    )


def narrow_range(conditions: Sequence[Condition], after: Position, upto: Position) -> tuple[Position, Position]:
    """Return the part of a range that can contain messages of matching ledgers."""
    for one in conditions:
        if one.column != LEDGER or one.negated or one.kind is In:
            continue
        if one.kind in (EqualTo, EqualNullSafe, GreaterThanOrEqual, GreaterThan):
            first = one.value + (one.kind is GreaterThan)
            after = max(after, Position(max(first, 0), -1))
        if one.kind in (EqualTo, EqualNullSafe, LessThanOrEqual, LessThan):
            behind = one.value + (one.kind is not LessThan)
            upto = min(upto, Position(max(behind, 0), -1))
    return after, upto


def entry_conditions(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that depend on an entry's position or on its messages."""
    return tuple(one for one in conditions if one.column in (LEDGER, ENTRY, INDEX, TIMESTAMP))


def match_mask(
    conditions: Sequence[Condition], position: Position, count: int, published_ms: memoryview
) -> NDArray[np.bool_] | None:
    """Return a mask of the matching messages of an entry; None: all of them."""
    kept: NDArray[np.bool_] | None = None
    for one in conditions:
        if one.column in (LEDGER, ENTRY):
            if one.holds(position.ledger_id if one.column == LEDGER else position.entry_id):
                continue
            return np.zeros(count, dtype=np.bool_)
        found = one.among(np.arange(count) if one.column == INDEX else times_ms(published_ms) * 1_000)
        kept = found if kept is None else kept & found
    return None if kept is None or kept.all() else kept
