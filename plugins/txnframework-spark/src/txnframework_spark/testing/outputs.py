"""What came out of a pipeline that writes each of its rows to two topics: pure.

Both copies are written in one transaction, by different entries in different segments. So a batch that is visible in
part shows as a transaction whose rows in one topic are not those in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEFT = "left"
RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Row:
    """A committed message: its topic, its value, and the transaction it was written in, if any."""

    topic: str
    value: str
    txn: str | None


@dataclass(frozen=True, slots=True)
class Defects:
    """How often what was found; everything empty: exactly once and nothing torn."""

    lost: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()


def compare(rows: Sequence[Row], expected: Iterable[str]) -> Defects:
    """Return what is wrong with ``rows`` of both topics where every expected value should stand once in each."""
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
    """Return every transaction of which a part is visible and a part is not."""
    found: list[str] = [f"no transaction: {row.value} in {row.topic}" for row in rows if row.txn is None]
    for txn in batches(rows):
        left, right = (
            sorted(row.value for row in rows if (row.txn, row.topic) == (txn, name)) for name in (LEFT, RIGHT)
        )
        if left != right:
            found.append(f"{txn}: {len(left)} rows in {LEFT}, {len(right)} in {RIGHT}")
    return tuple(found)


def batches(rows: Iterable[Row]) -> list[str]:
    """Return the transactions that rows stand in, in the order of their ids: one for each batch that is visible."""
    return sorted({row.txn for row in rows if row.txn is not None})
