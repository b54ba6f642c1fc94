"""All subscriptions, and one subscription with its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnframework.client import DeadLetter, SegmentLag, SubscriptionDescription, SubscriptionPosition
from txnframework.errors import InvalidInput, SubscriptionNotFound, TopicNotFound
from txnframework.model.names import TopicName
from txnframework_console.catalog import Catalog, Sample
from txnframework_console.views.source import PAGE_ROWS, SURVEY_TOPICS, ListPage, Source, page_of

SORTS = ("lag", "name", "redelivered")


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """
    One subscription of the list.

    ``found`` is None until its topic was read. ``letters``: the number of messages in its dead-letter topic of the
    default name; None: there is no such topic. ``segments``: how many segments of the topic take part.
    """

    topic: str
    name: str
    segments: int
    found: SubscriptionDescription | None
    letters: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of messages that are left; None: not known."""
        return None if self.found is None else self.found.lag.messages

    @property
    def redelivered(self) -> int | None:
        """The number of messages that were delivered before; None: not known."""
        return None if self.found is None else self.found.redelivered

    @property
    def holders(self) -> tuple[str, ...]:
        """The processes that dispatch messages, each once."""
        return () if self.found is None else tuple(sorted(set(self.found.holders.values())))

    @property
    def is_stuck(self) -> bool:
        """Whether messages are left and no process dispatches any segment."""
        return bool(self.lag) and not self.holders


@dataclass(frozen=True, slots=True)
class SubscriptionsView:
    """``unread``: how many topics have not been read yet, so that their subscriptions are not ordered by lag."""

    page: ListPage[SubscriptionRow]
    unread: int
    query: SubscriptionsQuery


@dataclass(frozen=True, slots=True)
class SubscriptionsQuery:
    """The list of subscriptions: ``text`` is part of the topic's or their name, ``sort`` is one of ``SORTS``."""

    text: str = ""
    sort: str = "lag"
    page: int = 1
    rows: int = PAGE_ROWS

    async def read(self, source: Source) -> SubscriptionsView:
        """Return one page; the subscriptions on it are read, and in each reading some more topics."""
        catalog = source.catalog
        layouts = await catalog.layouts()
        unread = 0 if self.sort == "name" else await catalog.survey(SURVEY_TOPICS)
        text = self.text.casefold()
        found = [
            _row(topic, name, len(layout.active()), catalog.sample(topic))
            for topic, layout in layouts.items()
            for name in layout.subscriptions
            if text in topic.casefold() or text in name.casefold()
        ]
        if self.sort != "name":
            found.sort(key=lambda one: (-(-1 if (size := getattr(one, self.sort)) is None else size), one.topic))
        page = page_of(found, self.page, self.rows)
        return SubscriptionsView(await _completed(page, catalog), unread, self)


async def _completed(page: ListPage[SubscriptionRow], catalog: Catalog) -> ListPage[SubscriptionRow]:
    """Return a page with its topics, and their dead-letter topics, read now."""
    layouts = await catalog.layouts()
    letters = {(one.topic, one.name): letter_topic(one.topic, one.name) for one in page.rows}
    existing = {name for name in letters.values() if name in layouts}
    samples = await catalog.read([*(one.topic for one in page.rows), *sorted(existing)])
    rows = []
    for one in page.rows:
        letter = samples.get(letters[one.topic, one.name])
        count = None if letter is None else letter.messages
        rows.append(_row(one.topic, one.name, one.segments, samples.get(one.topic), count))
    return ListPage(tuple(rows), page.number, page.pages, page.total)


def _row(topic: str, name: str, segments: int, sample: Sample | None, letters: int | None = None) -> SubscriptionRow:
    found = None
    if sample is not None:
        found = next((one for one in sample.topic.subscriptions if one.subscription == name), None)
    return SubscriptionRow(topic, name, segments, found, letters)


def letter_topic(topic: str, subscription: str) -> str:
    """Return the default name of a subscription's dead-letter topic; empty if no topic can have that name."""
    try:
        return str(DeadLetter(0).topic_for(TopicName.parse(topic), subscription))
    except InvalidInput:
        return ""


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """
    One subscription: its row, and its lags and holders by segment.

    ``positions``: by segment; None: not read, because reading them settles acknowledgments of ended transactions.
    """

    row: SubscriptionRow
    positions: Mapping[str, SubscriptionPosition] | None
    lags: Mapping[str, SegmentLag]
    holders: Mapping[str, str]
    letters_topic: str


@dataclass(frozen=True, slots=True)
class SubscriptionQuery:
    """One subscription, by its topic and its name."""

    topic: str
    name: str

    async def read(self, source: Source) -> SubscriptionView:
        """Return the subscription, or raise TopicNotFound or SubscriptionNotFound."""
        topic = TopicName.parse(self.topic)
        positions = None
        if source.changes:
            found = await source.client.describe_subscription(topic, self.name)
            positions = {one.segment: one for one in found}
        sample = (await source.catalog.read([self.topic])).get(self.topic)
        if sample is None:
            raise TopicNotFound(self.topic)
        page = page_of([_row(self.topic, self.name, len(sample.topic.layout.active()), None)], 1)
        (row,) = (await _completed(page, source.catalog)).rows
        if row.found is None:
            raise SubscriptionNotFound(self.topic, self.name)
        lags = {one.segment: one for one in row.found.lag.segments}
        letters = "" if row.letters is None else letter_topic(self.topic, self.name)
        return SubscriptionView(row, positions, lags, row.found.holders, letters)
