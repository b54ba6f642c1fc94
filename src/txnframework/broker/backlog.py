"""The backlog of a subscription: its size and its next messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from txnframework.broker.cursors import cursor_on
from txnframework.broker.dispatch.deliveries import HeldMessage
from txnframework.broker.segments import OpenSegment, SegmentVisit
from txnframework.broker.undecided_messages import UndecidedMessages, count_messages, undecided_after
from txnframework.errors import EntryTrimmed, SubscriptionNotFound
from txnframework.interfaces import IMetadataStore, IPlannableBuffer
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.entries import EntryView
from txnframework.model.layout import Layout
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import EntryPage, ReadRequest

LEDGERS_PAGE = 100
OLDEST_ENTRIES = 8
"""The entries that one read returns for the oldest message: most often the first one has it."""


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """
    The readable messages of one segment that a subscription has not acknowledged.

    Messages that wait for an open transaction are in ``undecided`` instead. Messages with a pending acknowledgment are
    counted. The count reads no messages, so messages of aborted transactions are counted until the subscription has
    passed them. If there may be such messages, ``exact`` is False and ``messages`` is an upper bound.
    """

    segment: str
    messages: int
    exact: bool
    undecided: UndecidedMessages | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a subscription by segment, parents before their children."""

    segments: tuple[SegmentLag, ...]

    @property
    def messages(self) -> int:
        """The number of messages in all segments."""
        return sum(one.messages for one in self.segments)

    @property
    def exact(self) -> bool:
        """Whether the number is exact: it cannot include messages of aborted transactions."""
        return all(one.exact for one in self.segments)


@dataclass(frozen=True, slots=True)
class Peeked:
    """An unacknowledged message of ``segment``; ``incarnation`` is that of the subscription's cursor."""

    segment: str
    held: HeldMessage
    incarnation: int


@dataclass(slots=True)
class SegmentCounts:
    """The stored messages and bytes of one segment, and its confirmed messages that may not be read yet."""

    segment: str
    messages: int
    bytes: int
    undecided: int


@dataclass(slots=True)
class SubscriptionCounts:
    """
    The number of unacknowledged messages of one subscription of a topic.

    ``oldest_sent_ms``: when the oldest was sent, in ms since 1970; None: none is found.
    """

    messages: int = 0
    oldest_sent_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """
    The stored messages that a subscription has not acknowledged, also those that wait for an open transaction.

    ``bytes``: their size, by the average size of the messages of each segment.
    """

    messages: int
    bytes: int


@dataclass(slots=True)
class TopicBacklog:
    """The messages of one topic by segment, parents before their children, and by subscription."""

    segments: list[SegmentCounts]
    subscriptions: dict[str, SubscriptionCounts]


class Backlog:
    """Reads the backlogs of subscriptions, without writing."""

    def __init__(self, store: IMetadataStore, visit: SegmentVisit, entries_max: int) -> None:
        self._store = store
        self._visit = visit
        self._entries_max = entries_max

    async def lag(self, layout: Layout, subscription: str) -> Lag:
        """
        Return the backlog of a subscription; ``SegmentLag`` defines which messages are counted.

        :raises SubscriptionNotFound: the topic does not list the subscription.
        """
        _require_listed(layout, subscription)
        found = []
        for segment_id in layout.made():
            # Read the cursor first: it never passes the max read position, so the max read position read afterwards is
            # not before it.
            cursor = await cursor_on(self._store, layout, segment_id, subscription)
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                readable = await opened.buffer.max_read_position()
                lag = await _lag_upto(opened, cursor, readable)
                found.append(replace(lag, undecided=await undecided_after(opened, readable)))
        return Lag(tuple(found))

    async def topic(self, layout: Layout) -> TopicBacklog:
        """Return the numbers of a topic's messages; each segment is opened once."""
        found = TopicBacklog([], {name: SubscriptionCounts() for name in layout.subscriptions})
        for segment_id in layout.made():
            # The cursors first, as for ``lag``.
            cursors = {one: await cursor_on(self._store, layout, segment_id, one) for one in layout.subscriptions}
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                found.segments.append(await _counts_of(opened))
                for name, cursor in cursors.items():
                    await self._add(found.subscriptions[name], opened, cursor)
        return found

    async def counts(self, layout: Layout, subscription: str) -> SubscriptionCounts:
        """
        Return the numbers of one subscription, over all segments.

        :raises SubscriptionNotFound: the topic does not list the subscription.
        """
        _require_listed(layout, subscription)
        found = SubscriptionCounts()
        for segment_id in layout.made():
            # The cursor first, as for ``lag``.
            cursor = await cursor_on(self._store, layout, segment_id, subscription)
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                await self._add(found, opened, cursor)
        return found

    async def _add(self, counts: SubscriptionCounts, opened: OpenSegment, cursor: Cursor) -> None:
        """Add the numbers of one segment to those of a subscription."""
        if messages := (await lag_of(opened, cursor)).messages:
            counts.messages += messages
            sent_ms = await self._oldest_sent_ms(opened, cursor)
            known = [one for one in (counts.oldest_sent_ms, sent_ms) if one is not None]
            counts.oldest_sent_ms = min(known, default=None)

    async def sizes(self, layout: Layout) -> dict[str, BacklogSize]:
        """Return the size of each subscription's backlog, without reading messages."""
        found = {name: BacklogSize(0, 0) for name in layout.subscriptions}
        for segment_id in layout.made() if found else ():
            # The cursors first, as for ``lag``.
            cursors = {one: await cursor_on(self._store, layout, segment_id, one) for one in layout.subscriptions}
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                counts = await _counts_of(opened)
                for name, cursor in cursors.items():
                    messages = (await lag_of(opened, cursor)).messages + counts.undecided
                    size = counts.bytes * messages // counts.messages if counts.messages else 0
                    found[name] = BacklogSize(found[name].messages + messages, found[name].bytes + size)
        return found

    async def undecided(self, layout: Layout) -> dict[str, int]:
        """Return, by segment, the number of confirmed messages that an open transaction keeps from being read."""
        found = {}
        for segment_id in layout.made():
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                readable = await opened.buffer.max_read_position()
                found[opened.name] = await count_messages(opened, readable, (await opened.ledger.tail()).last_confirmed)
        return found

    async def peek(self, layout: Layout, subscription: str, messages_max: int) -> tuple[Peeked, ...]:
        """
        Return the first unacknowledged messages of a subscription, parents before their children, in the order of each
        segment.

        Messages with a pending acknowledgment are included, because they may be delivered again.

        :raises SubscriptionNotFound: the topic does not list the subscription.
        """
        _require_listed(layout, subscription)
        found: list[Peeked] = []
        for segment_id in layout.made():
            if len(found) < messages_max:
                cursor = await cursor_on(self._store, layout, segment_id, subscription)
                async with self._visit(str(layout.name_of(segment_id))) as opened:
                    found.extend(await self._peek(opened, cursor, messages_max - len(found)))
        return tuple(found)

    async def _peek(self, opened: OpenSegment, cursor: Cursor, messages_max: int) -> list[Peeked]:
        found: list[Peeked] = []
        async for held in _unacknowledged(opened, cursor, self._entries_max):
            found.append(Peeked(opened.name, held, cursor.incarnation))
            if len(found) == messages_max:
                break
        return found

    async def _oldest_sent_ms(self, opened: OpenSegment, cursor: Cursor) -> int | None:
        """Return when the first unacknowledged message was sent; None: none is found."""
        async for held in _unacknowledged(opened, cursor, min(OLDEST_ENTRIES, self._entries_max)):
            return held.message.published_ms
        return None


async def _unacknowledged(opened: OpenSegment, cursor: Cursor, entries_max: int) -> AsyncIterator[HeldMessage]:
    """Yield the unacknowledged messages of a segment in their order; each read returns ``entries_max`` entries."""
    after = cursor.mark_delete
    while True:
        page = await _page_after(opened, _over_deleted(after, cursor), entries_max)
        for entry in page.entries:
            view = EntryView(entry.data, entry.position, opened.name)
            for index, message in enumerate(view.messages()):
                position = Position(entry.position.ledger_id, entry.position.entry_id, index)
                if state_of(cursor, position) is AckState.PENDING:
                    yield HeldMessage(position, view.count, message, view.producer, entry.branch)
        if page.upto <= after:
            return
        after = page.upto


def _require_listed(layout: Layout, subscription: str) -> None:
    if subscription not in layout.subscriptions:
        raise SubscriptionNotFound(str(layout.topic), subscription)


async def _counts_of(opened: OpenSegment) -> SegmentCounts:
    # The max read position first: it only moves forward, up to the last position.
    readable = await opened.buffer.max_read_position()
    undecided = await count_messages(opened, readable, (await opened.ledger.tail()).last_confirmed)
    counts = SegmentCounts(opened.name, 0, 0, undecided)
    after = -1
    while page := await opened.ledger.ledgers(after, LEDGERS_PAGE):
        counts.messages += sum(one.messages for one in page)
        counts.bytes += sum(one.bytes for one in page)
        after = page[-1].ledger_id
        if len(page) < LEDGERS_PAGE:
            break
    return counts


async def lag_of(opened: OpenSegment, cursor: Cursor) -> SegmentLag:
    """Return the backlog behind a cursor that was read before this call, without what is undecided."""
    return await _lag_upto(opened, cursor, await opened.buffer.max_read_position())


async def _lag_upto(opened: OpenSegment, cursor: Cursor, readable: Position) -> SegmentLag:
    messages = await count_messages(opened, cursor.mark_delete, readable)
    for first, last in cursor.deleted:
        messages -= await count_messages(opened, Position(first.ledger_id, first.entry_id - 1), min(last, readable))
    messages -= sum(len(indexes) for entry, indexes in cursor.partial.items() if entry <= readable)
    return SegmentLag(opened.name, max(0, messages), await _is_exact(opened, cursor.mark_delete, readable))


async def _is_exact(opened: OpenSegment, after: Position, upto: Position) -> bool:
    """Return True if a range holds no entries of branches that do not count, False if it may hold some."""
    if after >= upto:
        return True
    if not IPlannableBuffer.providedBy(opened.buffer):
        return False
    try:
        return not (await opened.buffer.plan(after, upto)).aborted
    except EntryTrimmed:
        (left,) = await opened.ledger.ledgers(-1, 1)
        return await _is_exact(opened, max(after, Position(left.ledger_id, -1)), upto)


async def _page_after(opened: OpenSegment, after: Position, entries_max: int) -> EntryPage:
    """
    Return the page after a position. If entries there were trimmed, return an empty page up to the first remaining
    entry.
    """
    try:
        return await opened.buffer.read(ReadRequest(after, Limit(entries_max)))
    except EntryTrimmed:
        (left,) = await opened.ledger.ledgers(-1, 1)
        return EntryPage((), Position(left.ledger_id, -1))


def _over_deleted(after: Position, cursor: Cursor) -> Position:
    """Return the position after which reading continues, past entries that were acknowledged one by one."""
    following = Position(after.ledger_id, after.entry_id + 1)
    return next((last for first, last in cursor.deleted if first <= following <= last), after)
