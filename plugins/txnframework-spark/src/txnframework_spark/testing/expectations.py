"""What a pipeline should have written: checks of rows in two topics, and windows computed in plain Python.

A pipeline writes each of its rows to two topics. Both copies are written in one transaction, by different entries in
different segments. So a partially visible batch shows as a transaction whose rows in one topic differ from those in the
other. Events with unequally frequent keys, and their windows, are compared with Spark's results under a watermark.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import txnframework
from txnframework.config import load_config
from txnframework_spark.options.parser import StoreOptions

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


WINDOW_S: Final = 600
WATERMARK_S: Final = 1_800
_BEGIN_S: Final = 1_700_000_000
_DAY_S: Final = 86_400
_DISORDER_S: Final = 300
_KEYS: Final = 240
_IN_FLIGHT: Final = 500
"""
The number of concurrent sends.

Their messages may be stored in a different order.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """An event with the time ``at_s``."""

    at_s: int
    key: str
    amount: int

    def message(self) -> bytes:
        """Return the event as a message's value."""
        return f"{self.at_s} {self.key} {self.amount}".encode()


def events(count: int, seed: int) -> list[Event]:
    """Return the events of a day in the order in which they are sent: each up to five minutes early or late.

    Some keys are much more frequent, so segments are as unequal as their keys.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    keys = [f"key-{number}" for number in range(_KEYS)]
    weights = [1 / (number + 1) ** 1.1 for number in range(_KEYS)]
    drawn = chance.choices(keys, weights, k=count)
    return [
        Event(
            _BEGIN_S + number * _DAY_S // count + chance.randint(-_DISORDER_S, _DISORDER_S), key, chance.randrange(1000)
        )
        for number, key in enumerate(drawn)
    ]


def closed_windows(given: Iterable[Event]) -> list[str]:
    """Return every window that a watermark after the latest event has closed, as the plan ``windows`` writes it."""
    found: dict[tuple[int, str], list[int]] = {}
    latest = 0
    for event in given:
        latest = max(latest, event.at_s)
        found.setdefault((event.at_s - event.at_s % WINDOW_S, event.key), []).append(event.amount)
    return [
        f"{start} {key} {len(amounts)} {sum(amounts)}"
        for (start, key), amounts in sorted(found.items())
        if start + WINDOW_S <= latest - WATERMARK_S
    ]


def publish(url: str, topic: str, given: Sequence[Event]) -> None:
    """Send events by a separate client, as a service with many events does."""

    async def send() -> None:
        async with txnframework.open(load_config(StoreOptions(metadata=url).source())) as client:
            producer = await client.producer(topic)
            for first in range(0, len(given), _IN_FLIGHT):
                some = given[first : first + _IN_FLIGHT]
                await asyncio.gather(*(producer.send(one.message(), key=one.key.encode()) for one in some))

    asyncio.run(send())
