"""All topics, and one topic with its segments."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.errors import TopicNotFound
from txnframework.model.layout import HASH_MAX, Layout, SegmentState
from txnframework_console.catalog import Sample
from txnframework_console.views.source import PAGE_ROWS, SURVEY_TOPICS, ListPage, Source, page_of

SEGMENTS_MAX = 200
"""The most segments that are drawn and listed."""
SORTS = ("name", "lag", "undecided", "rate")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic of the list; ``sample`` is None until it was read."""

    name: str
    layout: Layout
    sample: Sample | None

    @property
    def lag(self) -> int | None:
        """The largest lag of a subscription; None: there is none, or it is not known."""
        if self.sample is None:
            return None
        return max((one.lag.messages for one in self.sample.topic.subscriptions), default=None)

    @property
    def undecided(self) -> int | None:
        """The number of messages that wait for an open transaction; None: not known."""
        return None if self.sample is None else self.sample.undecided

    @property
    def rate(self) -> float | None:
        """Messages that were stored in each second; None: not known."""
        return None if self.sample is None else self.sample.messages_per_s


@dataclass(frozen=True, slots=True)
class TopicsView:
    """``unread``: how many topics an order by lag, undecided messages or rate does not cover yet."""

    page: ListPage[TopicRow]
    unread: int
    query: TopicsQuery


@dataclass(frozen=True, slots=True)
class TopicsQuery:
    """The list of topics: ``text`` is part of their names, ``sort`` is one of ``SORTS``, ``page`` a page number."""

    text: str = ""
    sort: str = "name"
    page: int = 1
    rows: int = PAGE_ROWS

    async def read(self, source: Source) -> TopicsView:
        """Return one page. Ordered by name, only its topics are read; otherwise some more in each reading."""
        layouts = await source.catalog.layouts()
        unread = 0 if self.sort == "name" else await source.catalog.survey(SURVEY_TOPICS)
        names = [name for name in layouts if self.text.casefold() in name.casefold()]
        found = [TopicRow(name, layouts[name], source.catalog.sample(name)) for name in names]
        if self.sort != "name":
            found.sort(key=lambda one: (-_number(getattr(one, self.sort)), one.name))
        page = page_of(found, self.page, self.rows)
        samples = await source.catalog.read(one.name for one in page.rows)
        rows = tuple(TopicRow(one.name, one.layout, samples.get(one.name)) for one in page.rows)
        return TopicsView(ListPage(rows, page.number, page.pages, page.total), unread, self)


def _number(found: float | None) -> float:
    return -1 if found is None else found


@dataclass(frozen=True, slots=True)
class SegmentBox:
    """
    A segment in the drawing of the segment tree.

    ``start`` and ``size`` are percentages of the hash range; ``row`` counts the changes that led to the segment.
    ``state``: ``active``, ``planned`` (about to be replaced), ``new`` (waits for its parents) or ``replaced``.
    """

    id: int
    start: float
    size: float
    row: int
    state: str
    messages: int
    undecided: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; ``boxes`` are its segments as they are drawn, and ``hidden`` is the number of those left out."""

    name: str
    sample: Sample
    boxes: tuple[SegmentBox, ...]
    hidden: int
    splits: bool

    @property
    def rows(self) -> int:
        """The number of rows of the drawing."""
        return 1 + max((one.row for one in self.boxes), default=0)


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """One topic, by its name."""

    name: str

    async def read(self, source: Source) -> TopicView:
        """Return the topic, or raise TopicNotFound."""
        sample = (await source.catalog.read([self.name])).get(self.name)
        if sample is None:
            raise TopicNotFound(self.name)
        boxes = segment_boxes(sample)
        splits = len(sample.topic.layout.segments) > 0 and self.name.startswith("topic:")
        return TopicView(self.name, sample, boxes[:SEGMENTS_MAX], max(0, len(boxes) - SEGMENTS_MAX), splits)


def segment_boxes(sample: Sample) -> tuple[SegmentBox, ...]:
    """Return the drawing of a topic's segments, parents before children."""
    layout, whole = sample.topic.layout, HASH_MAX + 1
    active = {one.id for one in layout.active()}
    rows: dict[int, int] = {}
    boxes = []
    for one in sample.topic.segments:
        segment = one.segment
        rows[segment.id] = max((rows[parent] + 1 for parent in segment.parents if parent in rows), default=0)
        state = segment.state.value
        if segment.state is SegmentState.ACTIVE and segment.id not in active:
            state = "new"
        start, size = 100 * segment.start / whole, 100 * (segment.end + 1 - segment.start) / whole
        boxes.append(SegmentBox(segment.id, start, size, rows[segment.id], state, one.messages, one.undecided))
    return tuple(boxes)
