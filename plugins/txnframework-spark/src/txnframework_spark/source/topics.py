"""The current topics of a load and their segments: named topics, or those that match a pattern."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.errors import TopicNotFound
from txnframework.model.layout import Layout
from txnframework.model.names import SegmentName, TopicName
from txnframework_spark.errors import InvalidOption, TopicLost
from txnframework_spark.options.choice import Choice
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.following import Followers
from txnframework_spark.source.offsets import SegmentOffset
from txnframework_spark.source.planning import part_of

Held = Mapping[str, Mapping[str, SegmentOffset]]
"""The segments in a query's offset, by topic."""


@dataclass(slots=True)
class ReadTopics:
    """The topics of one load.

    With a pattern, the store's topics are listed when a batch is planned, at most once in ``patternRefreshMs``.
    """

    host: Host
    options: SourceOptions
    followers: Followers
    _listed: tuple[TopicName, ...] = ()
    _listed_ms: int | None = field(default=None)

    async def names(self) -> tuple[TopicName, ...]:
        """Return the topics to read, in order; for a pattern, those of the last listing."""
        if self.options.choice.pattern is None:
            return self.options.topics
        now_ms = self.host.environment.now_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self.options.pattern_refresh_ms:
            self._listed = await matching(self.host, self.options.choice)
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
            layout = self._chosen(await self.followers.layout(topic))
        except TopicNotFound:
            await self.followers.forget(topic)
            self._listed_ms = None
            if segments and self.options.fail_on_data_loss:
                raise TopicLost(str(topic)) from None
            if self.options.choice.pattern is None and (held is None or self.options.fail_on_data_loss):
                raise
            return None
        if segments and gone(layout, segments) and self.options.fail_on_data_loss:
            raise TopicLost(str(topic), again=True)
        return layout

    def _chosen(self, layout: Layout) -> Layout:
        chosen = self.options.choice.assigned.get(layout.topic)
        return layout if chosen is None else chosen_part(layout, chosen)


def chosen_part(layout: Layout, chosen: Collection[int]) -> Layout:
    """Return the layout with the segments that ``assign`` names, or raise InvalidOption."""
    unknown = sorted(set(chosen) - layout.segments.keys())
    if unknown:
        raise InvalidOption("assign", no_segment(layout, unknown[0]))
    return part_of(layout, chosen)


def gone(layout: Layout, segments: Collection[str]) -> bool:
    """Return whether any of these segments is missing in the layout: segment ids are not reused."""
    return any(SegmentName.parse(name).segment_id not in layout.segments for name in segments)


async def matching(host: Host, choice: Choice) -> tuple[TopicName, ...]:
    """Return the topics that currently match the pattern."""
    return tuple(topic for topic in await host.topics.list(domain="topic") if choice.matches(topic))


def no_segment(layout: Layout, number: int) -> str:
    """Return the error message for a missing segment."""
    known = ", ".join(str(one) for one in sorted(layout.segments))
    return f"{layout.topic} has no segment {number}; it has {known}"
