"""
Read tasks: the division of ranges into partitions, the messages that each partition leaves out, and its maximum size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

from txnframework.broker import Host
from txnframework.errors import EntryTrimmed, LedgerNotFound, TopicNotFound
from txnframework.interfaces import IPlannableBuffer
from txnframework.model.cursor import Cursor
from txnframework.model.ids import Branch
from txnframework.model.ledger import MessageCount
from txnframework.model.positions import EARLIEST, EntryRange, Position
from txnframework.model.reads import Isolation
from txnframework_spark.errors import DataLost, TopicLost, Unsupported
from txnframework_spark.microbatch.registration import Range, Registration
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.batch_plan import parts
from txnframework_spark.source.offsets import before

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """A range of one segment, read directly from the ledger.

    ``aborted``: branches whose entries do not count; valid as long as the data exists. ``deleted``: inclusive ranges of
    entries, and ``partial``: indexes by entry, that the subscription acknowledged individually. ``reading``: the
    registration to make first. ``first`` and ``stop``, only in a batch: the first message to read, and the first
    message not to read, if they are inside an entry. ``skips_trimmed``: messages that are trimmed before they are read
    are skipped.
    """

    stores: StoreOptions
    topic: str
    segment: str
    after: Position
    upto: Position
    aborted: frozenset[Branch] = frozenset()
    deleted: tuple[tuple[Position, Position], ...] = ()
    partial: tuple[tuple[Position, frozenset[int]], ...] = ()
    registration: Registration | None = None
    first: Position | None = None
    stop: Position | None = None
    skips_trimmed: bool = False


_RANGES_AT_A_TIME: Final = 16
"""The number of ranges that are looked at concurrently."""


async def of_each(ranges: Sequence[S], work: Callable[[S], Awaitable[T]]) -> list[T]:
    """Return the result for each range, in order; the first error is raised when no call is in progress."""
    found: list[T] = []
    for first in range(0, len(ranges), _RANGES_AT_A_TIME):
        some = ranges[first : first + _RANGES_AT_A_TIME]
        for result in await asyncio.gather(*map(work, some), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            found.append(result)
    return found


COUNT_MAX: Final = 1 << 62
_NOT_ACKNOWLEDGED: Final = Cursor(0, EARLIEST)


@dataclass(frozen=True, slots=True)
class RangePartitioner:
    """Cuts the ranges of a batch; ``readings`` by topic and ``cursors`` by segment if it is acknowledged."""

    host: Host
    options: SourceOptions
    registrations: Mapping[str, Registration | None]
    cursors: Mapping[str, Cursor]

    async def tasks(self, ranges: Sequence[Range]) -> list[SegmentPartition]:
        """Return the read tasks, in order within each segment.

        :raises DataLost: messages of a range were trimmed, and ``failOnDataLoss`` is on.
        :raises TopicLost: the topic or segment was deleted, and ``failOnDataLoss`` is on.
        """
        left = [one for one in await of_each(ranges, self._left) if one is not None]
        bounds = await self._bounds([planned for planned, _ in left])
        found: list[SegmentPartition] = []
        for (planned, aborted), bound in zip(left, bounds, strict=True):
            found.extend(await self._cut(planned, aborted, bound))
        return found

    async def count(self, segment: str, after: Position, upto: Position, messages_max: int = COUNT_MAX) -> MessageCount:
        """Return the end of ``messages_max`` messages, and their number."""
        return await (await self.host.segment(segment)).ledger.count(EntryRange(after, upto), messages_max)

    async def _bounds(self, ranges: Sequence[Range]) -> list[int | None]:
        """Return the maximum number of messages of a task for each range; None: no limit."""
        most = self.options.max_records_per_partition
        if self.options.min_partitions is None or len(ranges) >= self.options.min_partitions:
            return [most] * len(ranges)
        counted = await of_each(ranges, lambda one: self.count(one.segment, one.start, one.end))
        counts = [one.messages for one in counted]
        found: list[int | None] = []
        for count, number in zip(counts, parts(counts, self.options.min_partitions), strict=True):
            share = max(1, -(-count // number))
            found.append(share if most is None else min(share, most))
        return found

    async def _cut(self, planned: Range, aborted: frozenset[Branch], bound: int | None) -> list[SegmentPartition]:
        cursor = self.cursors.get(planned.segment, _NOT_ACKNOWLEDGED)
        after = planned.start
        found: list[SegmentPartition] = []
        while after < planned.end:
            upto = planned.end
            if bound is not None:
                reached = (await self.count(planned.segment, after, planned.end, bound)).upto
                upto = reached if reached > after else upto
            found.append(
                SegmentPartition(
                    stores=self.options.stores,
                    topic=planned.topic,
                    segment=planned.segment,
                    after=after,
                    upto=upto,
                    aborted=aborted,
                    deleted=tuple(one for one in cursor.deleted if one[1] > after and one[0] <= upto),
                    partial=tuple((at, done) for at, done in cursor.partial.items() if after < at <= upto),
                    registration=self.registrations.get(planned.topic),
                    skips_trimmed=not self.options.fail_on_data_loss,
                )
            )
            after = upto
        return found

    async def _left(self, planned: Range) -> tuple[Range, frozenset[Branch]] | None:
        """Return the rest of a range after data loss, and its aborted branches; None if nothing is left."""
        try:
            await self.host.segment(planned.segment)
            after, aborted = planned.start, frozenset[Branch]()
            if self.options.isolation is Isolation.READ_COMMITTED:
                after, aborted = await self._plan(planned)
            left = Range(planned.topic, planned.segment, after, planned.end, planned.incarnation)
            return (left, aborted) if after < planned.end else None
        except (LedgerNotFound, TopicNotFound) as error:
            if self.options.fail_on_data_loss:
                raise TopicLost(planned.topic) from error
            return None

    async def _plan(self, planned: Range) -> tuple[Position, frozenset[Branch]]:
        """Return the start of reading and the aborted branches; waits until the whole range is decided here."""
        buffer = (await self.host.segment(planned.segment)).buffer
        if not IPlannableBuffer.providedBy(buffer):
            raise Unsupported(
                f"the buffer of {planned.segment} cannot be read from its ledger alone, as a Spark source requires;"
                " use buffer metadata"
            )
        try:
            plan = await buffer.plan(planned.start, planned.end)
            return planned.start, plan.aborted
        except EntryTrimmed as error:
            first = planned.end if error.first is None else before(error.first)
            if self.options.fail_on_data_loss:
                raise DataLost(planned.segment, str(planned.start), str(first)) from error
            if first >= planned.end:
                return planned.end, frozenset()
            return first, (await buffer.plan(first, planned.end)).aborted
