"""Alignment: a limited batch reads all segments up to the same time.

A segment stores its entries in order. A query that reads each segment up to the same time, by the store's clock, sees
the same rows as a query that was never interrupted. If one segment were read far ahead of another, rows of the other
would be late, and Spark silently drops rows that are later than a watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from txnframework.model.positions import Position
from txnframework_spark.source.backlog import Backlog, Waiting
from txnframework_spark.source.planning import shares

R = TypeVar("R")

Taken = dict[str, tuple[Position, int]]
"""For each segment the end of a batch, and the number of messages that the batch reads of it."""

_NEAR_ENOUGH: Final = 0.9
"""The part of the permitted messages that a batch reads at least, unless a single time has more."""
_SEGMENTS_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class Alignment:
    """Divides a batch among segments with waiting messages."""

    backlog: Backlog
    waiting: Mapping[str, Waiting]

    async def upto(self, stored_ms: int) -> Taken:
        """Return the end and count of each segment for all messages stored at ``stored_ms`` or before."""
        none = {name: (one.after, 0) for name, one in self.waiting.items()}
        return await self._upto(stored_ms, none, {name: (one.upto, one.messages) for name, one in self.waiting.items()})

    async def divided(self, messages_max: int) -> Taken:
        """Return about ``messages_max`` messages, fewer than wait: those stored up to the time that admits as many."""
        low, high = await self._moments(messages_max)
        at_low: Taken = {name: (one.after, 0) for name, one in self.waiting.items()}
        everything = {name: (one.upto, one.messages) for name, one in self.waiting.items()}
        at_high = await self._upto(high, at_low, everything)
        if _total(at_high) <= messages_max:
            return at_high
        while high - low > 1 and _total(at_low) < _NEAR_ENOUGH * messages_max:
            middle = (low + high) // 2
            found = await self._upto(middle, at_low, at_high)
            if _total(found) <= messages_max:
                low, at_low = middle, found
            else:
                high, at_high = middle, found
        if _total(at_low) >= _NEAR_ENOUGH * messages_max:
            return at_low
        return await self._filled(at_low, at_high, messages_max - _total(at_low))

    async def _moments(self, messages_max: int) -> tuple[int, int]:
        """Return two times that enclose the wanted one, close together if all segments are alike.

        Before the first time no segment has stored its share; at the second one each segment has.
        """
        share = shares({name: one.messages for name, one in self.waiting.items()}, messages_max)

        async def reached(name: str) -> int:
            one = self.waiting[name]
            counted = await self.backlog.count(name, one.after, one.upto, share.get(name, 1))
            # Trimmed since it was counted: the segment has no share to wait for.
            return 0 if counted.appended_ms is None else counted.appended_ms

        moments = await _each(dict.fromkeys(self.waiting, reached))
        return min(moments.values()) - 1, max(moments.values())

    async def _upto(self, stored_ms: int, least: Taken, most: Taken) -> Taken:
        """Return all messages stored at ``stored_ms`` or before; the result lies between ``least`` and ``most``."""

        async def look(name: str) -> tuple[Position, int]:
            (low, messages), (high, _) = least[name], most[name]
            end = await self.backlog.until(name, low, high, stored_ms)
            if end == high:
                return most[name]
            counted = (await self.backlog.count(name, low, end)).messages if end > low else 0
            return end, messages + counted

        found = await _each({name: look for name in self.waiting if least[name] != most[name]})
        return {**least, **found}

    async def _filled(self, least: Taken, most: Taken, messages_max: int) -> Taken:
        """Return ``least`` plus ``messages_max`` messages of a single time, in proportion to each segment's part."""
        share = shares(
            {name: most[name][1] - least[name][1] for name in least if most[name][1] > least[name][1]}, messages_max
        )

        async def fill(name: str) -> tuple[Position, int]:
            (low, messages), (high, all_messages) = least[name], most[name]
            if share[name] >= all_messages - messages:
                return high, all_messages
            counted = await self.backlog.count(name, low, high, share[name])
            # Without messages the rest was trimmed since it was counted, and is skipped.
            return (counted.upto, messages + counted.messages) if counted.messages else (high, all_messages)

        return {**least, **await _each(dict.fromkeys(share, fill))}


def _total(taken: Taken) -> int:
    return sum(messages for _, messages in taken.values())


async def _each(work: Mapping[str, Callable[[str], Awaitable[R]]]) -> dict[str, R]:
    """Return the result for each segment; a limited number of calls run concurrently."""
    names = list(work)
    found: dict[str, R] = {}
    for first in range(0, len(names), _SEGMENTS_AT_A_TIME):
        some = names[first : first + _SEGMENTS_AT_A_TIME]
        found.update(zip(some, await asyncio.gather(*(work[name](name) for name in some)), strict=True))
    return found
