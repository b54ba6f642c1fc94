"""Events with unequally frequent keys, and their windows: computed in plain Python, to compare with Spark's results
under a watermark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import txnframework
from txnframework.config import load_config
from txnframework_spark.options.stores import StoreOptions

WINDOW_S: Final = 600
WATERMARK_S: Final = 1_800
_BEGIN_S: Final = 1_700_000_000
_DAY_S: Final = 86_400
_DISORDER_S: Final = 300
_KEYS: Final = 240
_IN_FLIGHT: Final = 500
"""The number of concurrent sends; these may be stored in another order than sent."""


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
