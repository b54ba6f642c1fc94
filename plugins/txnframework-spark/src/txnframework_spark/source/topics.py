"""The current topics of a load, their layouts, and the end of each segment.

Spark asks for the latest offset every 10 ms while a query is idle. ``SegmentWatcher`` waits for announcements of each
segment in the background, so the answer comes from memory and an idle query reads nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.errors import Closed, LedgerNotFound, TopicNotFound, TxnFrameworkError
from txnframework.interfaces import IWatch
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import TOPIC, TopicName, parse_name, segment_id_of, topic_of
from txnframework.model.positions import Position
from txnframework.runtime.tasks import start_task
from txnframework_spark.errors import InvalidOption, TopicLost, Unsupported
from txnframework_spark.options.selection import TopicSelection
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.source.batch_plan import select_segments
from txnframework_spark.source.offsets import SegmentOffset


@dataclass(slots=True)
class WatchedSegment:
    """One segment: its max read position, and whether the segment is sealed and ends there.

    ``more_after``: a position in a sealed segment that is known not to be its end.
    """

    announced: Position
    ended: bool = False
    more_after: Position | None = None
    error: TxnFrameworkError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class SegmentWatcher:
    """The followed segments and layouts of a source; all methods run on the loop that created it."""

    def __init__(self, host: Host, uncommitted: bool) -> None:
        self._host = host
        self._uncommitted = uncommitted
        self._segments: dict[str, WatchedSegment] = {}
        self._layouts: dict[TopicName, Layout] = {}
        self._adopted: dict[str, TopicName] = {}
        self._watching: dict[TopicName, asyncio.Task[None]] = {}
        self._failed: dict[TopicName, TxnFrameworkError] = {}

    async def layout(self, topic: TopicName) -> Layout:
        """Return the layout, at most one notification old; also finishes interrupted layout changes."""
        self._raise_failure(self._failed.get(topic))
        if topic not in self._layouts:
            # The watch is set before the read, so that no change is missed.
            watch = await self._host.topics.watch(topic)
            try:
                layout = self._layouts[topic] = require_readable(topic, await self._host.topics.layout(topic))
            except BaseException:
                await watch.close()
                raise
            names = (str(layout.name_of(segment_id)) for segment_id in layout.segments)
            self._adopted |= {name: topic for name in names if topic_of(name) != topic}
            self._watching[topic] = start_task(self._run_layout(topic, watch))
        return self._layouts[topic]

    async def refresh(self, topic: TopicName) -> Layout:
        """Finish planned layout changes and read the layout again."""
        self._layouts[topic] = require_readable(topic, await self._host.topics.finish_changes(topic))
        return self._layouts[topic]

    async def forget(self, topic: TopicName) -> None:
        """Stop following a deleted topic, because a topic of the same name may be created."""
        self._layouts.pop(topic, None)
        self._failed.pop(topic, None)
        watching = [task] if (task := self._watching.pop(topic, None)) is not None else []
        # The segment of a topic that has migrated has the name of the former topic.
        for name in [name for name in self._segments if self._adopted.get(name, topic_of(name)) == topic]:
            found = self._segments.pop(name)
            watching += [] if found.task is None else [found.task]
        await _ended(watching)

    async def follow(self, segment: str) -> WatchedSegment:
        """
        Return the follower of a segment; start it if necessary.

        :raises Closed: the segment or the host was closed.
        """
        known = self._segments.get(segment)
        if known is None:
            known = self._segments[segment] = await self._begin(segment)
        elif isinstance(known.error, Closed):
            try:
                known = self._segments[segment] = await self._begin(segment)
            except LedgerNotFound:
                # Deleted with its topic; the layout reports that.
                return known
        self._raise_failure(known.error)
        return known

    async def _begin(self, segment: str) -> WatchedSegment:
        announced = await self.read_end(segment)
        # Checked here and not by the task. A query may begin or restart at the end of a split segment. It must then
        # continue with the children immediately, before the task has run.
        begun = WatchedSegment(announced, await self._ends_at(segment, announced))
        if not begun.ended:
            begun.task = start_task(self._run(segment, begun))
        return begun

    async def is_finished(self, segment: str, at: Position, state: SegmentState) -> bool:
        """Return whether the segment, in ``state`` according to its layout, is sealed and has nothing after ``at``."""
        known = await self.follow(segment)
        if at < known.announced:
            return False
        if not known.ended and state is not SegmentState.ACTIVE and known.more_after != at:
            # The layout is newer than the task's knowledge. A replaced segment is sealed: one check for each position.
            known.ended = await self._ends_at(segment, at)
            if state is SegmentState.REPLACED and not known.ended:
                known.more_after = at
        return known.ended

    async def read_end(self, segment: str) -> Position:
        """Read the current max read position of the segment from the store."""
        opened = await self._host.segment(segment)
        if self._uncommitted:
            return (await opened.ledger.tail()).last_confirmed
        return await opened.buffer.max_read_position()

    async def _ends_at(self, segment: str, at: Position) -> bool:
        opened = await self._host.segment(segment)
        if self._uncommitted:
            tail = await opened.ledger.tail()
            return tail.sealed and tail.last_confirmed <= at
        return await opened.buffer.finished(at)

    async def close(self) -> None:
        """Stop following."""
        following = (found.task for found in self._segments.values() if found.task is not None)
        await _ended([*self._watching.values(), *following])

    async def _run(self, segment: str, known: WatchedSegment) -> None:
        follow = self._follow_tail if self._uncommitted else self._follow_announcements
        error = await self._keep(lambda: follow(segment, known))
        known.error = error

    async def _follow_announcements(self, segment: str, known: WatchedSegment) -> None:
        buffer = (await retry_unavailable(self._host, lambda: self._host.segment(segment))).buffer
        while True:
            announced = await retry_unavailable(self._host, lambda: buffer.advanced(known.announced))
            if announced <= known.announced:
                # Sealed and decided to its end: the position is final.
                known.ended = True
                return
            known.announced = announced

    async def _follow_tail(self, segment: str, known: WatchedSegment) -> None:
        ledger = (await retry_unavailable(self._host, lambda: self._host.segment(segment))).ledger
        watch = await retry_unavailable(self._host, ledger.watch)
        try:
            while True:
                tail = await retry_unavailable(self._host, ledger.tail)
                known.announced = max(known.announced, tail.last_confirmed)
                if tail.sealed:
                    known.ended = True
                    return
                await watch.changed()
        finally:
            await watch.close()

    async def _run_layout(self, topic: TopicName, watch: IWatch) -> None:
        async def follow() -> None:
            while True:
                await watch.changed()
                layout = await retry_unavailable(self._host, lambda: self._host.topics.layout(topic))
                self._layouts[topic] = require_readable(topic, layout)

        try:
            error = await self._keep(follow)
        finally:
            await watch.close()
        if isinstance(error, Closed):
            # The watch was closed: the layout may be outdated, and is read again on demand.
            self._layouts.pop(topic, None)
        elif error is not None:
            self._failed[topic] = error

    async def _keep(self, follow: Callable[[], Coroutine[object, object, None]]) -> TxnFrameworkError | None:
        """Follow until the end; return the error that ended it. Each step retries during an outage."""
        try:
            await follow()
        except TxnFrameworkError as error:
            return error
        return None

    @staticmethod
    def _raise_failure(error: TxnFrameworkError | None) -> None:
        if error is not None:
            raise error


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Held = Mapping[str, Mapping[str, SegmentOffset]]
"""The segments in a query's offset, by topic."""


@dataclass(slots=True)
class TopicSet:
    """The topics of one load.

    With a pattern, the store's topics are listed when a batch is planned, at most once in ``patternRefreshMs``.
    """

    host: Host
    options: SourceOptions
    watcher: SegmentWatcher
    _listed: tuple[TopicName, ...] = ()
    _listed_ms: int | None = field(default=None)

    async def names(self) -> tuple[TopicName, ...]:
        """Return the topics to read, in order; for a pattern, those of the last listing."""
        if self.options.selection.pattern is None:
            return self.options.topics
        now_ms = self.host.environment.now_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self.options.pattern_refresh_ms:
            self._listed = await list_matching_topics(self.host, self.options.selection)
            self._listed_ms = now_ms
        return self._listed

    async def layouts(self, held: Held | None) -> dict[TopicName, Layout]:
        """Return the layout of each topic; ``held``: the segments in the query's offset, None at its start.

        :raises TopicNotFound: a named topic does not exist.
        :raises TopicLost: a topic that the query has begun was deleted, and ``failOnDataLoss`` is on.
        """
        names = set(await self.names()) | {TopicName.parse(name) for name in held or ()}
        found: dict[TopicName, Layout] = {}
        for topic in sorted(names):
            layout = await self._layout(topic, held)
            if layout is not None:
                found[topic] = layout
        return found

    async def _layout(self, topic: TopicName, held: Held | None) -> Layout | None:
        segments = (held or {}).get(str(topic))
        try:
            layout = self._chosen(await self.watcher.layout(topic))
        except TopicNotFound:
            await self.watcher.forget(topic)
            self._listed_ms = None
            if segments and self.options.fail_on_data_loss:
                raise TopicLost(str(topic)) from None
            if self.options.selection.pattern is None and (held is None or self.options.fail_on_data_loss):
                raise
            return None
        if segments and gone(layout, segments) and self.options.fail_on_data_loss:
            raise TopicLost(str(topic), again=True)
        return layout

    def _chosen(self, layout: Layout) -> Layout:
        chosen = self.options.selection.assigned.get(layout.topic)
        return layout if chosen is None else restrict_layout(layout, chosen)


def require_readable(topic: TopicName, layout: Layout) -> Layout:
    """
    Return the layout of a topic, unless the log-driven family serves it.

    :raises Unsupported: it does; read tasks do not know the outcomes of that family's transactions.
    """
    if layout.topic.domain == TOPIC:
        return layout
    raise Unsupported(f"Spark cannot read {topic}; migrate it to a topic:// topic first")


def restrict_layout(layout: Layout, chosen: Collection[int]) -> Layout:
    """Return the layout with the segments that ``assign`` names, or raise InvalidOption."""
    unknown = sorted(set(chosen) - layout.segments.keys())
    if unknown:
        raise InvalidOption("assign", missing_segment_message(layout, unknown[0]))
    return select_segments(layout, chosen)


def gone(layout: Layout, segments: Collection[str]) -> bool:
    """Return whether any of these segments is missing in the layout: segment ids are not reused."""
    return not all(is_segment_of(layout, name) for name in segments)


def is_segment_of(layout: Layout, name: str) -> bool:
    """Return whether the layout has a segment of this name, which is the old one if its topic has migrated."""
    number = segment_id_of(parse_name(name))
    return number in layout.segments and str(layout.name_of(number)) == name


async def list_matching_topics(host: Host, selection: TopicSelection) -> tuple[TopicName, ...]:
    """Return the topics that currently match the pattern."""
    return tuple(topic for topic in await host.topics.list(domain="topic") if selection.matches(topic))


def missing_segment_message(layout: Layout, number: int) -> str:
    """Return the error message for a missing segment."""
    known = ", ".join(str(one) for one in sorted(layout.segments))
    return f"{layout.topic} has no segment {number}; it has {known}"
