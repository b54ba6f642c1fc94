"""
The size of one micro-batch: ``maxOffsetsPerTrigger``, ``maxBytesPerTrigger``, ``minOffsetsPerTrigger`` and
``maxTriggerDelay``.

Alignment: a limited batch reads all segments up to the same time. A segment stores its entries in order. A query that
reads each segment up to the same time, by the store's clock, sees the same rows as a query that was never interrupted.
If one segment were read far ahead of another, rows of the other would be late, and Spark silently drops rows that are
later than a watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from txnframework.broker import Host
from txnframework.model.positions import Position
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.backlog import COUNT_MAX, BacklogCounter, UnreadMessages
from txnframework_spark.source.batch_plan import shares

R = TypeVar("R")

Admitted = dict[str, tuple[Position, int]]
"""For each segment the end of a batch, and the number of messages that the batch reads of it."""

_NEAR_ENOUGH: Final = 0.9
"""The part of the permitted messages that a batch reads at least, unless a single time has more."""
_SEGMENTS_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class Alignment:
    """Divides a batch among segments with waiting messages."""

    backlog: BacklogCounter
    waiting: Mapping[str, UnreadMessages]

    async def upto(self, stored_ms: int) -> Admitted:
        """Return the end and count of each segment for all messages stored at ``stored_ms`` or before."""
        none = {name: (one.after, 0) for name, one in self.waiting.items()}
        return await self._upto(stored_ms, none, {name: (one.upto, one.messages) for name, one in self.waiting.items()})

    async def divided(self, messages_max: int) -> Admitted:
        """Return about ``messages_max`` messages, fewer than wait: those stored up to the time that admits as many."""
        low, high = await self._moments(messages_max)
        at_low: Admitted = {name: (one.after, 0) for name, one in self.waiting.items()}
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

    async def _upto(self, stored_ms: int, least: Admitted, most: Admitted) -> Admitted:
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

    async def _filled(self, least: Admitted, most: Admitted, messages_max: int) -> Admitted:
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


def _total(taken: Admitted) -> int:
    return sum(messages for _, messages in taken.values())


async def _each(work: Mapping[str, Callable[[str], Awaitable[R]]]) -> dict[str, R]:
    """Return the result for each segment; a limited number of calls run concurrently."""
    names = list(work)
    found: dict[str, R] = {}
    for first in range(0, len(names), _SEGMENTS_AT_A_TIME):
        some = names[first : first + _SEGMENTS_AT_A_TIME]
        found.update(zip(some, await asyncio.gather(*(work[name](name) for name in some)), strict=True))
    return found


Ends = Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The most messages of a batch, exceeded only to complete an entry, and about the most bytes of its entries."""

    messages: int = COUNT_MAX
    bytes: int = COUNT_MAX


NO_LIMIT: Final = BatchLimit()


@dataclass(slots=True)
class Admission:
    """Decides the end of each segment in a batch, from counts and times of entries, without reading the entries."""

    host: Host
    options: SourceOptions
    _backlog: BacklogCounter = field(init=False)
    _begun_ms: int = field(init=False)
    _too_few: tuple[Ends, Ends] | None = None

    def __post_init__(self) -> None:
        self._backlog = BacklogCounter(self.host)
        self.begin()

    def begin(self) -> None:
        """Record the begin of a batch, from which ``maxTriggerDelay`` is counted."""
        self._begun_ms = self.host.environment.monotonic_ms()
        self._too_few = None

    async def enough(self, starts: Ends, ends: Ends, messages_min: int) -> bool:
        """Return whether ``messages_min`` messages wait, or the last batch began ``maxTriggerDelay`` ago."""
        if self.host.environment.monotonic_ms() - self._begun_ms >= self.options.max_trigger_delay_ms:
            return True
        if self._too_few == (starts, ends):
            # Spark asks again every few milliseconds, and nothing has changed.
            return False
        waiting = 0
        for name, at in starts.items():
            if at < ends[name] and waiting < messages_min:
                waiting += (await self._backlog.count(name, at, ends[name], messages_min)).messages
        self._too_few = None if waiting >= messages_min else (starts, ends)
        return waiting >= messages_min

    async def admitted(
        self, starts: Ends, ends: Ends, limit: BatchLimit, parents: Collection[str]
    ) -> dict[str, Position]:
        """
        Return the end of each segment: about as many messages over all of them as the limit allows, by whole entries.

        :param parents: segments whose children wait until these are finished. Messages of children were stored after
            those of their parents, and are read in a later batch. So with ``alignSegments`` no segment is read beyond
            the time up to which the parents are read.
        """
        parents = parents if self.options.align_segments else ()
        if limit == NO_LIMIT and not any(starts[name] < ends[name] for name in parents):
            return dict(ends)
        waiting = {
            name: await self._backlog.waiting(name, at, ends[name]) for name, at in starts.items() if at < ends[name]
        }
        # If no message waits before the end, as after the last entry of a closed ledger, the end is admitted. Otherwise
        # a segment that is sealed there would never be finished, and its children would never begin.
        empty = {name: (one.upto, 0) for name, one in waiting.items() if not one.messages}
        taken: Admitted = {}
        # A parent with only its end left is finished first; its children are then read with all other segments.
        if not any(name in empty for name in parents):
            left = {name: one for name, one in waiting.items() if one.messages}
            taken = await self._taken(left, limit, parents)
        taken |= empty
        self._backlog.admit(taken)
        return {name: taken[name][0] if name in taken else at for name, at in starts.items()}

    async def _taken(
        self, waiting: Mapping[str, UnreadMessages], limit: BatchLimit, parents: Collection[str]
    ) -> Admitted:
        bounds = [one.stored_ms for name, one in waiting.items() if name in parents and one.stored_ms is not None]
        if bounds:
            taken = await Alignment(self._backlog, waiting).upto(min(bounds))
            waiting = {
                name: UnreadMessages(one.after, taken[name][0], taken[name][1])
                for name, one in waiting.items()
                if taken[name][1]
            }
        total = sum(one.messages for one in waiting.values())
        messages_max = min(limit.messages, await self._fitting(waiting, limit.bytes))
        if total <= messages_max:
            return {name: (one.upto, one.messages) for name, one in waiting.items()}
        if self.options.align_segments:
            return await Alignment(self._backlog, waiting).divided(messages_max)
        return await self._shared(waiting, messages_max)

    async def _fitting(self, waiting: Mapping[str, UnreadMessages], bytes_max: int) -> int:
        """
        Return how many messages have about ``bytes_max`` bytes, if each segment gives its part of the batch.

        Ledgers count messages and bytes, but no bytes of a range. So the average size in a segment's ledgers is used.
        """
        if bytes_max == COUNT_MAX:
            return COUNT_MAX
        sizes = await _each({name: partial(self._size, one) for name, one in waiting.items()})
        total = sum(sizes.values())
        messages = sum(one.messages for one in waiting.values())
        return COUNT_MAX if total <= bytes_max else max(1, int(messages * bytes_max / total))

    async def _size(self, one: UnreadMessages, name: str) -> float:
        return one.messages * await self._backlog.message_bytes(name, one.after, one.upto)

    async def _shared(self, waiting: Mapping[str, UnreadMessages], messages_max: int) -> Admitted:
        """Divide a batch in proportion to the waiting messages, regardless of their times."""
        taken: Admitted = {}
        for name, share in shares({name: one.messages for name, one in waiting.items()}, messages_max).items():
            one = waiting[name]
            taken[name] = one.upto, one.messages
            if share < one.messages:
                counted = await self._backlog.count(name, one.after, one.upto, share)
                # Without messages the rest was trimmed since it was counted, and is skipped.
                if counted.messages:
                    taken[name] = counted.upto, counted.messages
        return taken
