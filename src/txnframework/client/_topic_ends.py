"""Client operations that look at the ends of topics: the last message, and the last sequence id of a producer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from txnframework.broker import OpenSegment
from txnframework.client._base import ClientOperations, Name, naming_deletion
from txnframework.client._messages import MessageID
from txnframework.errors import EntryTrimmed
from txnframework.model.entries import EntryView
from txnframework.model.layout import Layout
from txnframework.model.names import check_known_name
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import ReadRequest

STEPS = (1, 16, 256, 4096)
"""How many entries before the end of a segment the last message is searched, one after the other."""
PAGE = Limit(256)
LEDGERS_PAGE = 1_000


class EndOperations(ClientOperations):
    """The operations of ``Client`` that look at the ends of topics."""

    async def last_message(self, topic: Name) -> MessageID | None:
        """
        Return the id of the last message that can be read now, in the newest segment that has one; None: there is none.

        Messages of open and aborted transactions, and what is behind the first open one, do not count.

        :raises TopicNotFound: the topic does not exist.
        """
        layout = await self.host.topics.layout(self._topic(topic))
        async with naming_deletion(self.host, lambda: (layout,)):
            return await self._retry.run(lambda: self._last_message(layout))

    async def last_sequence_id(self, topic: Name, producer: str) -> int | None:
        """
        Return the highest sequence id of a producer name that the topic remembers; None: it remembers none.

        Each segment remembers the last messages of a producer, as far as its deduplication window reaches.

        :param producer: the name of the producer.
        :raises TopicNotFound: the topic does not exist.
        """
        check_known_name(producer, "producer name")
        layout = await self.host.topics.layout(self._topic(topic))
        async with naming_deletion(self.host, lambda: (layout,)):
            return await self._retry.run(lambda: self._last_sequence_id(layout, producer))

    async def _last_message(self, layout: Layout) -> MessageID | None:
        for segment_id in sorted(layout.made(), reverse=True):
            opened = await self.host.segment(str(layout.name_of(segment_id)))
            at = await _last_position(opened)
            if at is not None:
                return MessageID(opened.name, at)
        return None

    async def _last_sequence_id(self, layout: Layout, producer: str) -> int | None:
        found: list[int] = []
        for segment_id in layout.made():
            opened = await self.host.segment(str(layout.name_of(segment_id)))
            highest = (await opened.ledger.remembered(producer, 0)).highest
            if highest is not None:
                found.append(highest)
        return max(found, default=None)


async def _last_position(opened: OpenSegment) -> Position | None:
    async for after in _starts(opened):
        try:
            last = await _last_after(opened, after)
        except EntryTrimmed:
            # All that is left is in later ledgers, so there is nothing further back either.
            left = await opened.ledger.ledgers(-1, 1)
            return await _last_after(opened, Position(left[0].ledger_id, -1)) if left else None
        if last is not None:
            return last
    return None


async def _last_after(opened: OpenSegment, after: Position) -> Position | None:
    """Return the position of the last message that can be read after a position; None: there is none."""
    last: Position | None = None
    while True:
        page = await opened.buffer.read(ReadRequest(after, PAGE))
        if page.entries:
            entry = page.entries[-1]
            count = EntryView(entry.data, entry.position, opened.name).count
            last = Position(entry.position.ledger_id, entry.position.entry_id, count - 1)
        if page.upto == after:
            return last
        after = page.upto


async def _starts(opened: OpenSegment) -> AsyncIterator[Position]:
    """Yield positions ever further before the end of a segment."""
    end = await opened.buffer.max_read_position()
    for step in STEPS:
        if step <= end.entry_id:
            yield Position(end.ledger_id, end.entry_id - step)
    ledgers: list[int] = []
    after = -1
    while page := await opened.ledger.ledgers(after, LEDGERS_PAGE):
        ledgers += [one.ledger_id for one in page if one.ledger_id <= end.ledger_id]
        after = page[-1].ledger_id
    for ledger_id in reversed(ledgers):
        yield Position(ledger_id, -1)
