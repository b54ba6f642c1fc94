"""The segments that a consumer follows: which they are, and in which order they are attached; without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from txnframework.client._subscription.feed import Feed
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import SegmentName, TopicName, parse_name, segment_id_of, topic_of

Targets = tuple[TopicName | SegmentName, ...]
"""The topics and segments that a caller named."""


class TopicSegment(NamedTuple):
    """A segment by its full name, with its topic and its place in the topic's layout."""

    name: str
    topic: TopicName
    segment: Segment


def followed(layout: Layout, targets: Targets, in_order: bool) -> tuple[Segment, ...]:
    """
    Return the segments of one topic to attach to, parents before children.

    A named segment is followed to its descendants. With an order, a descendant comes after all of its parents. So
    segments that were merged with it are included too, together with their ancestors.

    Planned children are left out: they are empty and may have no ledgers before the layout change ends.
    """
    made = [layout.segments[one] for one in layout.made()]
    if layout.topic in targets:
        return tuple(made)
    wanted: set[int] = set()
    for named in [one for one in targets if one.topic == layout.topic or layout.has(one)]:
        root = layout.segment_of(named)
        descendants = layout.descendants(root.id)
        wanted |= {root.id, *(one.id for one in descendants)}
        if in_order:
            before = {one.id for one in layout.ancestors(root.id)}
            wanted |= {one.id for child in descendants for one in layout.ancestors(child.id)} - before
    return tuple(segment for segment in made if segment.id in wanted)


class FollowedSegments:
    """
    The layouts of a consumer's topics as last read, and the consumer's feeds of their segments, by full name.

    ``in_order``: the children of a segment are received after the segment.
    """

    def __init__(self, targets: Targets, in_order: bool) -> None:
        self.targets = targets
        self.in_order = in_order
        self.layouts: dict[TopicName, Layout] = {}
        self.feeds: dict[str, Feed] = {}
        # For each topic, what ``_by_id`` returned last, and the layout and the targets that it was returned for.
        self._known: dict[TopicName, tuple[Layout, Targets, dict[int, TopicSegment]]] = {}

    def layout_of(self, segment: str) -> Layout:
        """
        Return the layout of the topic to which a segment belongs.

        :raises KeyError: this consumer does not follow the topic.
        """
        found = self.find_layout(segment)
        if found is None:
            raise KeyError(segment)
        return found

    def layouts_of(self, segments: Iterable[str]) -> list[Layout]:
        """Return the layouts of the topics to which segments belong, of those that this consumer follows."""
        found = [layout for layout in map(self.find_layout, segments) if layout is not None]
        return list({layout.topic: layout for layout in found}.values())

    def find_layout(self, segment: str) -> Layout | None:
        """Return the layout of the topic to which a segment belongs; None: this consumer does not follow the topic."""
        topic = topic_of(segment)
        if topic in self.layouts:
            return self.layouts[topic]
        return next((one for one in self.layouts.values() if topic in one.names), None)

    def move(self, topic: TopicName, to: Layout) -> None:
        """Follow a topic that has migrated: its new layout, and the new name as the target."""
        self.layouts.pop(topic, None)
        self._known.pop(topic, None)
        self.layouts[to.topic] = to
        self.targets = tuple(dict.fromkeys(to.topic if one == topic else one for one in self.targets))

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The topics of the targets."""
        return tuple(dict.fromkeys(target.topic for target in self.targets))

    def all(self) -> list[TopicSegment]:
        """Return all segments to attach to, parents before children."""
        return [one for layout in self.layouts.values() for one in self.of(layout)]

    def of(self, layout: Layout) -> tuple[TopicSegment, ...]:
        """Return the segments of one topic to attach to, parents before children."""
        return tuple(self._by_id(layout).values())

    def _by_id(self, layout: Layout) -> dict[int, TopicSegment]:
        known = self._known.get(layout.topic)
        if known is None or known[0] is not layout or known[1] is not self.targets:
            found = followed(layout, self.targets, self.in_order)
            named = {one.id: TopicSegment(str(layout.name_of(one.id)), layout.topic, one) for one in found}
            known = self._known[layout.topic] = layout, self.targets, named
        return known[2]

    def names(self) -> tuple[str, ...]:
        """Return the names of all segments to attach to, parents before children."""
        return tuple(one.name for one in self.all())

    def is_asked_for(self, segment: str) -> bool:
        """Return whether the caller named this segment or its topic."""
        name = parse_name(segment)
        return name in self.targets or self.layout_of(segment).topic in self.targets

    def is_finished(self, segment: str) -> bool:
        """Return whether everything in a segment is acknowledged, as far as it was noticed here."""
        return segment in self.feeds and self.feeds[segment].finished

    def ancestors(self, segment: str) -> tuple[Feed, ...]:
        """Return the feeds of a segment's ancestors, oldest first."""
        layout = self.layout_of(segment)
        return self._feeds_before(layout.topic, layout.segment_of(parse_name(segment)).id)

    def descends(self, segment: str, segments: Collection[str]) -> bool:
        """Return whether a segment is received after one of these segments."""
        return self.in_order and any(one.place.segment in segments for one in self.ancestors(segment))

    def feeds_after(self, segment: str) -> tuple[Feed, ...]:
        """Return the feeds of the segments that are received after a segment."""
        layout = self.find_layout(segment)
        name = parse_name(segment)
        if not self.in_order or layout is None or not layout.has(name) or not layout.segment_of(name).children:
            return ()
        after = {str(layout.name_of(one.id)) for one in layout.descendants(segment_id_of(name))}
        return tuple(feed for found, feed in self.feeds.items() if found in after)

    def may_follow(self, at: TopicSegment) -> bool:
        """Return whether a segment may be attached, by the state of its parents."""
        if not self.in_order or not at.segment.parents:
            return True
        wanted = self._by_id(self.layouts[at.topic])
        feeds = [self.feeds.get(wanted[parent].name) for parent in at.segment.parents if parent in wanted]
        return all(feed is not None and feed.may_be_followed for feed in feeds)

    def follows(self, at: TopicSegment) -> bool:
        """
        Return whether this consumer still holds the ancestors of a segment; their leases may have been lost.

        False also if its topic has just migrated: what was received of it is about to be given back.
        """
        return at.topic in self.layouts and all(feed.holds for feed in self._feeds_before(at.topic, at.segment.id))

    def ready(self, layout: Layout) -> list[str]:
        """Return the segments of a topic that are not finished and, with an order, whose parents are finished."""
        left = [one for one in self.of(layout) if not self.is_finished(one.name)]
        unfinished = {one.segment.id for one in left}
        return [one.name for one in left if not self.in_order or unfinished.isdisjoint(one.segment.parents)]

    def generations(self) -> tuple[tuple[Feed, ...], ...]:
        """Return all feeds in groups of which none descends from another, ancestors first."""
        found: dict[int, list[Feed]] = {}
        depths = {layout.topic: _depths(layout) for layout in self.layouts.values()}
        for name, feed in self.feeds.items():
            layout = self.find_layout(name) if self.in_order else None
            depth = 0 if layout is None else depths[layout.topic].get(segment_id_of(parse_name(name)), 0)
            found.setdefault(depth, []).append(feed)
        return tuple(tuple(feeds) for _, feeds in sorted(found.items()))

    def _feeds_before(self, topic: TopicName, segment_id: int) -> tuple[Feed, ...]:
        layout = self.layouts[topic]
        names = (str(layout.name_of(one.id)) for one in reversed(layout.ancestors(segment_id)))
        return tuple(self.feeds[one] for one in names if one in self.feeds)


def _depths(layout: Layout) -> dict[int, int]:
    """Return for each segment the length of the longest line of its ancestors."""
    found: dict[int, int] = {}
    for segment in layout.in_order():
        found[segment.id] = 1 + max((found[parent] for parent in segment.parents if parent in found), default=-1)
    return found
