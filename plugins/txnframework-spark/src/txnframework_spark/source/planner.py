"""The driver's part of reading: one planner for each load, in its source-runner process for the whole run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnframework.broker import Host
from txnframework.interfaces import ILease
from txnframework.model.cursor import Cursor
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import TopicName, parse_name, segment_id_of
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.reads import Isolation
from txnframework_spark.errors import Diverged, InvalidOption
from txnframework_spark.microbatch.registration import Range, Registration
from txnframework_spark.options.selection import Bounds, Edge
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.admission import NO_LIMIT, Admission, BatchLimit
from txnframework_spark.source.backlog import lag_of
from txnframework_spark.source.batch_plan import (
    parents_of_unbegun,
    ranges_between,
    readable,
    unfinished_segments,
    within_cursors,
)
from txnframework_spark.source.offsets import Frontier, Offset, SegmentOffset, find_time, first_untrimmed, resolve_bound
from txnframework_spark.source.partitions import RangePartitioner, SegmentPartition
from txnframework_spark.source.subscriptions import (
    AcknowledgmentCheck,
    HeldSubscription,
    TakeOverRequest,
    cursor_of,
    release_all,
    take_over,
)
from txnframework_spark.source.topics import SegmentWatcher, TopicSet, is_segment_of, missing_segment_message

PlaceOf = Callable[[TopicName, str], Awaitable[SegmentOffset]]


@dataclass(slots=True)
class InputPlanner:
    """Plans the batches of one load; every method runs on the loop that opened it."""

    host: Host
    options: SourceOptions
    holder: str
    starting: Bounds
    watcher: SegmentWatcher
    topics: TopicSet
    admission: Admission
    acknowledgments: AcknowledgmentCheck
    subscriptions: dict[TopicName, HeldSubscription] = field(default_factory=dict)
    leases: tuple[ILease, ...] = ()
    targets: dict[str, Position] | None = None
    planned: Frontier | None = None
    finished_changes: set[str] = field(default_factory=set)
    cursors: dict[str, Cursor] = field(default_factory=dict)

    @classmethod
    def of(cls, host: Host, options: SourceOptions, holder: str) -> InputPlanner:
        """Return the planner of a load, before any takeover."""
        options = options.for_stream()
        assert options.starting is not None
        watcher = SegmentWatcher(host, options.isolation is Isolation.READ_UNCOMMITTED)
        topics = TopicSet(host, options, watcher)
        acknowledgments = AcknowledgmentCheck(host, options.allow_unacknowledged)
        admission = Admission(host, options)
        return cls(host, options, holder, options.starting, watcher, topics, admission, acknowledgments)

    @classmethod
    async def open(cls, host: Host, options: SourceOptions, holder: str, begins: bool = False) -> InputPlanner:
        """Return a planner that has taken over its subscriptions; see ``take``."""
        planner = cls.of(host, options, holder)
        await planner.take(begins)
        return planner

    async def take(self, begins: bool) -> None:
        """Take over the subscriptions, if there is a ``groupId``; the run's epoch begins here.

        ``begins``: the query is new. Otherwise, a topic that matches the pattern and has no subscription appeared while
        the query was stopped, and is read from its beginning.
        """
        joining = self.options.selection.pattern is not None and not begins
        try:
            # All runs use the same order, so that two of them do not wait for each other.
            for topic in sorted(await self.topics.names()):
                await self._hold(topic, "earliest" if joining else self.starting.default.value)
        except BaseException:
            await self.close()
            raise

    # -- offsets --------------------------------------------------------------------------------------

    async def initial(self) -> Offset:
        """Return the start of a new query: the cursors, or the places of ``startingOffsets``."""
        frontier: Frontier = {}
        for topic, layout in (await self.topics.layouts(None)).items():
            frontier[str(topic)] = await self._readable(layout, await self._named_places(layout), self._initial_place)
        return Offset(frontier, initial=True)

    async def latest(self, start: Offset, limit: BatchLimit = NO_LIMIT, messages_min: int | None = None) -> Offset:
        """Return the end of the next batch from ``start``.

        The result is ``start`` itself if there is nothing new, or if fewer than ``messages_min`` messages wait and
        ``maxTriggerDelay`` has not passed.

        :raises InvalidOption: ``start`` contains a topic that the options do not name.
        :raises NotAcknowledged: the batches before ``start`` were read with ``groupId`` and never acknowledged.
        """
        self._require_chosen(start)
        frontier: Frontier = {}
        layouts = await self.topics.layouts(start.frontier)
        await self.acknowledgments.check(start, [one for one in self.subscriptions.values() if one.topic in layouts])
        for topic, layout in layouts.items():
            frontier[str(topic)] = await self._joined(start, layout)
        starts = {name: offset.at for segments in frontier.values() for name, offset in segments.items()}
        marks = {name: cursor.mark_delete for name, cursor in self.cursors.items()}
        ends = within_cursors(starts, {name: await self._end(name) for name in starts}, marks)
        self.planned = start.frontier
        if all(ends[name] <= at for name, at in starts.items()):
            return start
        waits = messages_min is not None and self.targets is None
        if waits and not await self.admission.enough(starts, ends, messages_min or 0):
            return start
        parents = [
            name for topic, layout in layouts.items() for name in parents_of_unbegun(layout, frontier[str(topic)])
        ]
        ends = await self.admission.admitted(starts, ends, limit, parents)
        self.admission.begin()
        self.planned = {
            topic: {name: SegmentOffset(ends[name], offset.incarnation) for name, offset in segments.items()}
            for topic, segments in frontier.items()
        }
        return Offset(self.planned, began=frontier if start.initial or _tells_more(frontier, start) else None)

    async def fix_targets(self) -> None:
        """Record the current ends of all segments; no batch is planned beyond them (AvailableNow)."""
        targets: dict[str, Position] = {}
        for layout in (await self.topics.layouts({})).values():
            for name in _names(layout):
                targets[name] = await self.watcher.read_end(name)
        self.targets = targets

    async def report(self) -> dict[str, Any]:
        """Return the current ends of all segments and the lag, for the query's progress."""
        frontier: Frontier = {}
        left: Frontier = {}
        planned = self.planned or {}
        for topic, layout in (await self.topics.layouts({})).items():
            ends = {name: SegmentOffset(await self._end(name)) for name in _names(layout)}
            frontier[str(topic)] = ends
            left[str(topic)] = {name: ends[name] for name in unfinished_segments(layout, planned.get(str(topic), {}))}
        reported = Offset(frontier).to_json()
        if self.acknowledgments.missing:
            reported["unacknowledged"] = dict(self.acknowledgments.missing)
        if self.planned is not None:
            reported["lag"] = await lag_of(self.host, planned, left)
        return reported

    async def _joined(self, start: Offset, layout: Layout) -> dict[str, SegmentOffset]:
        """Return the segments of a topic to read, with their offsets, including segments that join now."""
        topic = str(layout.topic)
        # Before the first batch, a segment that joins begins where a new query begins. ``latest`` is the exception: it
        # was evaluated when the query began, and a child may contain later messages.
        fixed = self.options.group_id is not None or self.starting.edge is not Edge.LATEST
        place = self._initial_place if start.initial and fixed else self._joining_place
        # Applies to every topic: reads of a subscription that was not taken over would never be acknowledged.
        if layout.topic not in self.subscriptions:
            await self._hold(layout.topic, "earliest")
        if topic not in start.frontier:
            return await self._readable(layout, {}, self._new_topics_place)
        held = {name: at for name, at in start.frontier[topic].items() if is_segment_of(layout, name)}
        return await self._readable(layout, held, place)

    async def _readable(
        self, layout: Layout, held: Mapping[str, SegmentOffset], place: PlaceOf
    ) -> dict[str, SegmentOffset]:
        """Return the segments of a topic to read, with their offsets; ``place`` returns that of a joining segment."""
        found = dict(held)
        finished: set[str] = set()
        while True:
            for name in found.keys() - finished:
                if await self._is_finished(layout, name, found[name].at):
                    finished.add(name)
            after = readable(layout, found, finished)
            if after == found.keys():
                return found
            found = {name: found[name] if name in found else await place(layout.topic, name) for name in sorted(after)}

    async def _is_finished(self, layout: Layout, name: str, at: Position) -> bool:
        state = layout.segments[segment_id_of(parse_name(name))].state
        if not await self.watcher.is_finished(name, at, state):
            return False
        if state is not SegmentState.REPLACED and name not in self.finished_changes:
            # Sealed but not replaced in our layout: the layout is outdated, or a change of it was interrupted.
            self.finished_changes.add(name)
            await self.watcher.refresh(layout.topic)
        return True

    async def _end(self, name: str) -> Position:
        announced = (await self.watcher.follow(name)).announced
        if self.targets is None:
            return announced
        return min(announced, self.targets.get(name, EARLIEST))

    # -- where segments begin -------------------------------------------------------------------------

    async def _named_places(self, layout: Layout) -> dict[str, SegmentOffset]:
        found: dict[str, SegmentOffset] = {}
        for number, place in self.starting.named.get(layout.topic, {}).items():
            if number not in layout.segments:
                raise InvalidOption("startingOffsets", missing_segment_message(layout, number))
            name = str(layout.name_of(number))
            found[name] = SegmentOffset(await resolve_bound(self.host, name, place, await self.watcher.read_end(name)))
        return found

    async def _initial_place(self, topic: TopicName, name: str) -> SegmentOffset:
        if self.options.group_id is not None:
            return await self._at_cursor(topic, name)
        if self.starting.at_ms is not None:
            return SegmentOffset(await find_time(self.host, name, self.starting.at_ms))
        end = await self.watcher.read_end(name)
        return SegmentOffset(await resolve_bound(self.host, name, self.starting.default, end))

    async def _joining_place(self, topic: TopicName, name: str) -> SegmentOffset:
        # From its beginning, even if the cursor is further: after an older checkpoint all is read again, in order.
        if topic in self.subscriptions:
            return SegmentOffset(EARLIEST, (await self._cursor(topic, name)).incarnation)
        return SegmentOffset(EARLIEST)

    async def _new_topics_place(self, topic: TopicName, name: str) -> SegmentOffset:
        # An older checkpoint lacks the topic; everything that the subscription has passed was committed.
        if topic in self.subscriptions:
            return await self._at_cursor(topic, name)
        return SegmentOffset(await first_untrimmed((await self.host.segment(name)).ledger))

    async def _at_cursor(self, topic: TopicName, name: str) -> SegmentOffset:
        cursor = await self._cursor(topic, name)
        return SegmentOffset(cursor.mark_delete, cursor.incarnation)

    async def _cursor(self, topic: TopicName, name: str) -> Cursor:
        """Return the cursor as of the takeover; the cursor of a child created since is read now."""
        if name not in self.cursors:
            assert self.options.group_id is not None
            self.cursors[name] = await cursor_of(self.host, str(topic), self.options.group_id, name)
        return self.cursors[name]

    def _require_chosen(self, offset: Offset) -> None:
        """Raise InvalidOption if the checkpoint contains a topic that the options do not name."""
        for topic in offset.frontier:
            if not self.options.selection.includes(TopicName.parse(topic)):
                raise InvalidOption(
                    "subscribe",
                    f"the checkpoint contains an offset in {topic}, which the options no longer include; include it"
                    " again, or delete the checkpoint (with groupId, a new checkpoint begins at the cursors)",
                )

    async def _hold(self, topic: TopicName, start: str) -> None:
        """Take over a topic's subscription, if there is a ``groupId``; ``start``: where a new one begins."""
        if self.options.group_id is None:
            return
        taker = TakeOverRequest(self.host, self.holder, start, self.options.take_over_timeout_ms)
        held, leases = await take_over(taker, topic, self.options.group_id)
        self.subscriptions[topic] = held
        self.leases += leases
        self.cursors.update(held.cursors)

    # -- partitions -----------------------------------------------------------------------------------

    async def partitions(self, start: Offset, end: Offset) -> list[SegmentPartition]:
        """Return the read tasks of a batch; only the offsets determine the range.

        :raises InvalidOption: the batch contains a topic that the options do not name.
        :raises Diverged: a seek moved the cursor since the offset was planned.
        :raises DataLost: messages of the range were trimmed, and ``failOnDataLoss`` is on.
        :raises TopicLost: a topic or segment was deleted, and ``failOnDataLoss`` is on.
        """
        self._require_chosen(end)
        ranges = ranges_between(start, end)
        registrations = {one.topic: await self._registration(one.topic, ranges) for one in ranges}
        cursors = {
            one.segment: await self._cursor(TopicName.parse(one.topic), one.segment)
            for one in ranges
            if registrations[one.topic] is not None
        }
        return await RangePartitioner(self.host, self.options, registrations, cursors).tasks(ranges)

    async def _registration(self, topic: str, ranges: Sequence[Range]) -> Registration | None:
        held = self.subscriptions.get(TopicName.parse(topic))
        if held is None:
            return None
        mine = tuple(planned for planned in ranges if planned.topic == topic)
        for planned in mine:
            if (await self._cursor(held.topic, planned.segment)).incarnation != planned.incarnation:
                raise Diverged(
                    topic,
                    held.subscription,
                    f"its cursor on {planned.segment} was moved by a seek; delete the checkpoint to continue from"
                    " there",
                )
        return Registration(topic, held.subscription, held.epoch, mine)

    async def close(self) -> None:
        """Release the leases and stop following."""
        await self.watcher.close()
        await release_all(self.leases)


def _names(layout: Layout) -> list[str]:
    return [str(layout.name_of(segment.id)) for segment in layout.in_order()]


def _tells_more(frontier: Frontier, start: Offset) -> bool:
    """Return whether a segment begins elsewhere than ``start`` implies: absent segments begin at the first entry."""
    return any(
        offset.at != EARLIEST and name not in start.frontier.get(topic, {})
        for topic, segments in frontier.items()
        for name, offset in segments.items()
    )
