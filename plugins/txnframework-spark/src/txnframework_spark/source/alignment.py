"""How a batch that cannot take everything takes all segments forward to one moment.

A segment's entries were stored in order. A query that reads each segment up to the same moment, by the store's clock,
sees what a query would have seen that had run all the time. If one segment were read far ahead of another, rows of the
other would come late, and behind a watermark Spark drops late rows without a word.
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
"""By segment where a batch ends, and how many messages it takes of it."""

_NEAR_ENOUGH: Final = 0.9
"""Which part of the messages that it may take a batch takes at least, unless a single moment has more."""
_SEGMENTS_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class Alignment:
    """Divides a batch among segments in which something waits."""

    backlog: Backlog
    waiting: Mapping[str, Waiting]

    async def upto(self, stored_ms: int) -> Taken:
        """Return everything that was stored at ``stored_ms`` or before."""
        none = {name: (one.after, 0) for name, one in self.waiting.items()}
        return await self._upto(stored_ms, none, {name: (one.upto, one.messages) for name, one in self.waiting.items()})

    async def divided(self, messages_max: int) -> Taken:
        """Return about so many messages, fewer than wait: all that was stored up to the moment that admits as many."""
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
        """Return moments between which the one that is looked for lies, close together where all segments are alike.

        Before the first one no segment has stored its share, at the second one each has.
        """
        share = shares({name: one.messages for name, one in self.waiting.items()}, messages_max)

        async def reached(name: str) -> int:
            one = self.waiting[name]
            counted = await self.backlog.count(name, one.after, one.upto, share.get(name, 1))
            # Trimmed since it was counted: there is nothing to wait for.
            return 0 if counted.appended_ms is None else counted.appended_ms

        moments = await _each(dict.fromkeys(self.waiting, reached))
        return min(moments.values()) - 1, max(moments.values())

    async def _upto(self, stored_ms: int, least: Taken, most: Taken) -> Taken:
        """Return everything that was stored at ``stored_ms`` or before, which lies between the two."""

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
        """Return ``least`` and so many messages of a single moment more, by what each segment stored in it."""
        share = shares(
            {name: most[name][1] - least[name][1] for name in least if most[name][1] > least[name][1]}, messages_max
        )

        async def fill(name: str) -> tuple[Position, int]:
            (low, messages), (high, all_messages) = least[name], most[name]
            if share[name] >= all_messages - messages:
                return high, all_messages
            counted = await self.backlog.count(name, low, high, share[name])
            # Nothing is there any more: it was trimmed since it was counted, and is gone over.
            return (counted.upto, messages + counted.messages) if counted.messages else (high, all_messages)

        return {**least, **await _each(dict.fromkeys(share, fill))}


def _total(taken: Taken) -> int:
    return sum(messages for _, messages in taken.values())


async def _each(work: Mapping[str, Callable[[str], Awaitable[R]]]) -> dict[str, R]:
    """Return what is found for each segment, of some of them at a time."""
    names = list(work)
    found: dict[str, R] = {}
    for first in range(0, len(names), _SEGMENTS_AT_A_TIME):
        some = names[first : first + _SEGMENTS_AT_A_TIME]
        found.update(zip(some, await asyncio.gather(*(work[name](name) for name in some)), strict=True))
    return found
