"""Judgment of a pipeline that writes each of its rows to two topics: pure.

Both copies are written in one transaction, by different entries in different segments. So a partially visible batch
shows as a transaction whose rows in one topic differ from those in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEFT = "left"
RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Row:
    """A committed message: its topic, its value, and its transaction, if any."""

    topic: str
    value: str
    txn: str | None


@dataclass(frozen=True, slots=True)
class Defects:
    """The defects with their numbers; all empty: exactly once and no partial transactions."""

    lost: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()


def compare(rows: Sequence[Row], expected: Iterable[str]) -> Defects:
    """Return the defects in ``rows`` of both topics, if every expected value must be stored once in each."""
    wanted = frozenset(expected)
    lost: list[str] = []
    repeated: list[str] = []
    unexpected: list[str] = []
    for topic in (LEFT, RIGHT):
        found = Counter(row.value for row in rows if row.topic == topic)
        lost += [f"{value} in {topic}" for value in sorted(wanted - found.keys())]
        unexpected += [f"{value} in {topic}" for value in sorted(found.keys() - wanted)]
        repeated += [f"{value} in {topic}, {count} times" for value, count in sorted(found.items()) if count > 1]
    return Defects(tuple(lost), tuple(repeated), tuple(unexpected), torn(rows))


def torn(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return every transaction that is partially visible."""
    found: list[str] = [f"no transaction: {row.value} in {row.topic}" for row in rows if row.txn is None]
    for txn in batches(rows):
        left, right = (
            sorted(row.value for row in rows if (row.txn, row.topic) == (txn, name)) for name in (LEFT, RIGHT)
        )
        if left != right:
            found.append(f"{txn}: {len(left)} rows in {LEFT}, {len(right)} in {RIGHT}")
    return tuple(found)


def batches(rows: Iterable[Row]) -> list[str]:
    """Return the transactions of rows, in the order of their ids: one for each visible batch."""
    return sorted({row.txn for row in rows if row.txn is not None})
