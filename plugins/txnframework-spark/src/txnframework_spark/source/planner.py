"""The driver's part of reading: one planner for each load, alive in its source-runner process for as long as the
run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.errors import EntryTrimmed
from txnframework.interfaces import ILease, IPlannableBuffer
from txnframework.model.cursor import Cursor
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.ledger import Counted
from txnframework.model.names import SegmentName, TopicName
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework.model.reading import Isolation
from txnframework_spark.errors import DataLost, Diverged, Unsupported
from txnframework_spark.microbatch.ranges import Range
from txnframework_spark.microbatch.registration import Reading
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.following import Followers
from txnframework_spark.source.offsets import Frontier, Offset, SegmentOffset
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.planning import ranges_between, readable, shares, within_cursors
from txnframework_spark.source.takeover import Holding, Taker, cursor_of, release_all, take_over


@dataclass(slots=True)
class InputPlanner:
    """Plans batches of one load; every method runs on the loop that opened it."""

    host: Host
    options: SourceOptions
    followers: Followers
    holdings: dict[TopicName, Holding] = field(default_factory=dict)
    leases: tuple[ILease, ...] = ()
    targets: dict[str, Position] | None = None
    finished_changes: set[str] = field(default_factory=set)
    cursors: dict[str, Cursor] = field(default_factory=dict)

    @classmethod
    async def open(cls, host: Host, options: SourceOptions, holder: str) -> InputPlanner:
        """Take the subscriptions over, if there is a ``groupId``; this is what the run's epoch begins with."""
        planner = cls(host, options, Followers(host, options.isolation is Isolation.READ_UNCOMMITTED))
        if options.group_id is not None:
            taker = Taker(host, holder, options.starting_offsets, options.take_over_timeout_ms)
            # In one order everywhere: two takers that want the same topics do not wait for each other.
            try:
                for topic in sorted(options.topics):
                    holding, leases = await take_over(taker, topic, options.group_id)
                    planner.holdings[topic] = holding
                    planner.leases += leases
                    planner.cursors.update(holding.cursors)
            except BaseException:
                await planner.close()
                raise
        return planner

    # -- offsets --------------------------------------------------------------------------------------

    async def initial(self) -> Offset:
        """Return where a new query begins: at the cursors, or where ``startingOffsets`` says."""
        frontier: Frontier = {}
        for topic in self.options.topics:
            layout = await self.followers.layout(topic)
            frontier[str(topic)] = await self._readable(layout, {}, self._initial_place)
        return Offset(frontier, initial=True)

    async def latest(self, start: Offset, messages_max: int | None) -> Offset:
        """Return how far the next batch reads from ``start``; ``start`` itself when there is nothing new."""
        frontier: Frontier = {}
        ends: dict[str, Position] = {}
        for topic in self.options.topics:
            layout = await self.followers.layout(topic)
            # Nothing was read yet: what joins now joins where a new query begins. Only not at ``latest``, which was
            # when the query began: what a child holds may have come since.
            fixed = self.options.group_id is not None or self.options.starting_offsets != "latest"
            place = self._initial_place if start.initial and fixed else self._joining_place
            frontier[str(topic)] = await self._readable(layout, start.frontier.get(str(topic), {}), place)
            for name in frontier[str(topic)]:
                ends[name] = await self._end(name)
        starts = {name: offset.at for segments in frontier.values() for name, offset in segments.items()}
        marks = {name: cursor.mark_delete for name, cursor in self.cursors.items()}
        ends = within_cursors(starts, ends, marks)
        if messages_max is not None:
            ends = await self._admitted(starts, ends, messages_max)
        if all(ends[name] <= at for name, at in starts.items()):
            return start
        moved = {
            topic: {name: SegmentOffset(ends[name], offset.incarnation) for name, offset in segments.items()}
            for topic, segments in frontier.items()
        }
        return Offset(moved, began=frontier if start.initial else None)

    async def fix_targets(self) -> None:
        """Remember how far everything can be read now: nothing beyond is planned any more (AvailableNow)."""
        targets: dict[str, Position] = {}
        for topic in self.options.topics:
            for name in _names(await self.followers.layout(topic)):
                targets[name] = await self.followers.read_end(name)
        self.targets = targets

    async def report(self) -> Offset:
        """Return how far everything can be read now, for the query's progress."""
        frontier: Frontier = {}
        for topic in self.options.topics:
            names = _names(await self.followers.layout(topic))
            frontier[str(topic)] = {name: SegmentOffset(await self._end(name)) for name in names}
        return Offset(frontier)

    async def _readable(
        self, layout: Layout, held: Mapping[str, SegmentOffset], place: Callable[[str], Awaitable[SegmentOffset]]
    ) -> dict[str, SegmentOffset]:
        """Return the segments of a topic to read on from, and where; ``place`` tells it for one that joins."""
        found = dict(held)
        finished: set[str] = set()
        while True:
            for name in found.keys() - finished:
                if await self._is_finished(layout, name, found[name].at):
                    finished.add(name)
            after = readable(layout, found, finished)
            if after == found.keys():
                return found
            found = {name: found[name] if name in found else await place(name) for name in sorted(after)}

    async def _is_finished(self, layout: Layout, name: str, at: Position) -> bool:
        state = layout.segments[SegmentName.parse(name).segment_id].state
        if not await self.followers.is_finished(name, at, state):
            return False
        if state is not SegmentState.REPLACED and name not in self.finished_changes:
            # Sealed, and not replaced as far as we know: our layout is old, or somebody left a change half way.
            self.finished_changes.add(name)
            await self.followers.refresh(layout.topic)
        return True

    async def _end(self, name: str) -> Position:
        announced = (await self.followers.follow(name)).announced
        if self.targets is None:
            return announced
        return min(announced, self.targets.get(name, EARLIEST))

    async def _initial_place(self, name: str) -> SegmentOffset:
        if self.options.group_id is not None:
            cursor = await self._cursor(name)
            return SegmentOffset(cursor.mark_delete, cursor.incarnation)
        if self.options.starting_offsets == "latest":
            return SegmentOffset(await self.followers.read_end(name))
        return SegmentOffset(await self._first_left(name))

    async def _joining_place(self, name: str) -> SegmentOffset:
        # From its beginning also where the cursor is further: an older checkpoint is read again as a whole, in order.
        if SegmentName.parse(name).topic in self.holdings:
            return SegmentOffset(EARLIEST, (await self._cursor(name)).incarnation)
        return SegmentOffset(EARLIEST)

    async def _first_left(self, name: str) -> Position:
        ledger = (await self.host.segment(name)).ledger
        end = (await ledger.tail()).last_confirmed
        try:
            await ledger.read(EntryRange(EARLIEST, end), Limit(1))
        except EntryTrimmed as error:
            return end if error.first is None else _before(error.first)
        return EARLIEST

    async def _cursor(self, name: str) -> Cursor:
        """Return the cursor as it was when it was taken over; a child made since then is read now."""
        if name not in self.cursors:
            topic = SegmentName.parse(name).topic
            assert self.options.group_id is not None
            self.cursors[name] = await cursor_of(self.host, str(topic), self.options.group_id, name)
        return self.cursors[name]

    async def _admitted(
        self, starts: Mapping[str, Position], ends: Mapping[str, Position], messages_max: int
    ) -> dict[str, Position]:
        """Return ends that admit about ``messages_max`` messages, by whole entries."""
        waiting: dict[str, int] = {}
        reach: dict[str, Position] = {}
        for name, at in starts.items():
            if at < ends[name]:
                counted = await self._count(name, at, ends[name], messages_max)
                waiting[name], reach[name] = counted.messages, counted.upto
        given = shares({name: count for name, count in waiting.items() if count}, messages_max)
        admitted = dict(starts)
        for name, share in given.items():
            upto = reach[name]
            if share < waiting[name]:
                upto = (await self._count(name, starts[name], ends[name], share)).upto
            admitted[name] = upto
        return admitted

    async def _count(self, name: str, after: Position, upto: Position, messages_max: int) -> Counted:
        ledger = (await self.host.segment(name)).ledger
        return await ledger.count(EntryRange(after, upto), messages_max)

    # -- partitions -----------------------------------------------------------------------------------

    async def partitions(self, start: Offset, end: Offset) -> list[SegmentPartition]:
        """Return the read tasks of a batch; the range is that of the offsets, whatever can be read now.

        :raises Diverged: the cursor was moved by a seek since the offset was planned.
        :raises DataLost: messages of the range were trimmed, and ``failOnDataLoss`` is on.
        """
        ranges = ranges_between(start, end)
        found: list[SegmentPartition] = []
        for planned in ranges:
            reading = await self._reading(planned.topic, [one for one in ranges if one.topic == planned.topic])
            found.extend(await self._cut(planned, reading))
        return found

    async def _reading(self, topic: str, ranges: Sequence[Range]) -> Reading | None:
        holding = self.holdings.get(TopicName.parse(topic))
        if holding is None:
            return None
        for planned in ranges:
            if (await self._cursor(planned.segment)).incarnation != planned.incarnation:
                raise Diverged(
                    topic,
                    holding.subscription,
                    f"its cursor on {planned.segment} was moved by a seek; delete the checkpoint to go on from there",
                )
        return Reading(topic, holding.subscription, holding.epoch, tuple(ranges))

    async def _cut(self, planned: Range, reading: Reading | None) -> list[SegmentPartition]:
        after, aborted = planned.start, frozenset[Branch]()
        if self.options.isolation is Isolation.READ_COMMITTED:
            after, aborted = await self._plan(planned)
        cursor = Cursor(0, EARLIEST) if reading is None else await self._cursor(planned.segment)
        found: list[SegmentPartition] = []
        while after < planned.end:
            upto = planned.end
            if self.options.max_records_per_partition is not None:
                bound = self.options.max_records_per_partition
                upto = max((await self._count(planned.segment, after, planned.end, bound)).upto, after)
                upto = planned.end if upto == after else upto
            found.append(
                SegmentPartition(
                    stores=self.options.stores,
                    segment=planned.segment,
                    after=after,
                    upto=upto,
                    aborted=aborted,
                    deleted=tuple(one for one in cursor.deleted if one[1] > after and one[0] <= upto),
                    partial=tuple((at, done) for at, done in cursor.partial.items() if after < at <= upto),
                    reading=reading,
                )
            )
            after = upto
        return found

    async def _plan(self, planned: Range) -> tuple[Position, frozenset[Branch]]:
        """Return where reading begins and which branches do not count; waits until the whole range is decided here."""
        buffer = (await self.host.segment(planned.segment)).buffer
        if not IPlannableBuffer.providedBy(buffer):
            raise Unsupported(
                f"the buffer of {planned.segment} cannot be read from its ledger alone, which a Spark source needs; use"
                " buffer metadata"
            )
        try:
            plan = await buffer.plan(planned.start, planned.end)
            return planned.start, plan.aborted
        except EntryTrimmed as error:
            first = planned.end if error.first is None else _before(error.first)
            if self.options.fail_on_data_loss:
                raise DataLost(planned.segment, str(planned.start), str(first)) from error
            if first >= planned.end:
                return planned.end, frozenset()
            return first, (await buffer.plan(first, planned.end)).aborted

    async def close(self) -> None:
        """Give the leases back and stop following."""
        await self.followers.close()
        await release_all(self.leases)


def _names(layout: Layout) -> list[str]:
    return [str(layout.name_of(segment.id)) for segment in layout.in_order()]


def _before(first: Position) -> Position:
    """Return the place before the first entry that is left."""
    return Position(first.ledger_id, first.entry_id - 1)
