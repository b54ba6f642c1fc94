"""The unread messages of each segment: their number, the number stored up to a time, and the lag of a query.

No entry is read. A ledger counts and searches by bisection, and lists its closed ledgers for a count over many of them.
So counts are cached, and the next batch counts only the messages added since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txnframework.broker import Host
from txnframework.interfaces import IManagedLedger
from txnframework.model.ledger import MessageCount
from txnframework.model.positions import EARLIEST, EntryRange, Position
from txnframework_spark.source.offsets import Frontier, SegmentOffset

COUNT_MAX: Final = 1 << 62
_LEDGERS_MAX: Final = 10
"""The most ledgers of a segment whose average size of messages is determined."""


@dataclass(frozen=True, slots=True)
class UnreadMessages:
    """Messages after ``after`` up to ``upto``; ``stored_ms`` is the time of the last one, None if there is none."""

    after: Position
    upto: Position
    messages: int
    stored_ms: int | None = None


@dataclass(slots=True)
class BacklogCounter:
    """Counts the waiting messages of one load's segments."""

    host: Host
    _known: dict[str, UnreadMessages] = field(default_factory=dict)

    async def waiting(self, name: str, after: Position, upto: Position) -> UnreadMessages:
        """Return the waiting messages of a segment."""
        known = self._known.get(name)
        if known is None or known.after != after or known.upto > upto:
            # Not the end of the last batch: the first batch of a run, or the last planned batch was not run.
            known = UnreadMessages(after, after, 0)
        if known.upto < upto:
            added = await self.count(name, known.upto, upto)
            stored_ms = known.stored_ms if added.appended_ms is None else added.appended_ms
            known = UnreadMessages(after, upto, known.messages + added.messages, stored_ms)
        self._known[name] = known
        return known

    async def count(self, name: str, after: Position, upto: Position, messages_max: int = COUNT_MAX) -> MessageCount:
        """Return the end of ``messages_max`` messages, by whole entries and at least one entry."""
        return await (await self._ledger(name)).count(EntryRange(after, upto), messages_max)

    async def message_bytes(self, name: str, after: Position, upto: Position) -> float:
        """Return the average size of the messages in the ledgers that a range begins in and reaches next."""
        ledger = await self._ledger(name)
        summaries = await ledger.ledgers(max(after.ledger_id, 0) - 1, _LEDGERS_MAX)
        within = [one for one in summaries if one.last > after and one.ledger_id <= upto.ledger_id]
        messages = sum(one.messages for one in within)
        return sum(one.bytes for one in within) / messages if messages else 0

    async def until(self, name: str, after: Position, upto: Position, stored_ms: int) -> Position:
        """Return the position after the last entry stored at ``stored_ms`` or before, limited to the range."""
        return min(upto, max(after, await (await self._ledger(name)).find_time(stored_ms + 1)))

    def admit(self, admitted: Mapping[str, tuple[Position, int]]) -> None:
        """Record the end of a batch in each segment, and the number of messages that it reads."""
        for name, (end, messages) in admitted.items():
            known = self._known.get(name)
            if known is not None:
                # Fewer messages than counted remain if some were trimmed since.
                left = known.messages - messages if end < known.upto else 0
                self._known[name] = UnreadMessages(end, max(known.upto, end), left, known.stored_ms if left else None)

    async def _ledger(self, name: str) -> IManagedLedger:
        return (await self.host.segment(name)).ledger


async def lag_of(host: Host, planned: Frontier, readable: Frontier) -> dict[str, Any]:
    """Return the number of messages after ``planned`` up to ``readable``, by topic and in total.

    Messages are counted without being read, so those of aborted transactions are included. ``readable`` contains the
    segments that are left to read; a segment that ``planned`` lacks counts completely.
    """
    topics = {topic: await _of_topic(host, planned.get(topic, {}), segments) for topic, segments in readable.items()}
    return {"messages": sum(topics.values()), "topics": topics}


async def _of_topic(host: Host, planned: Mapping[str, SegmentOffset], readable: Mapping[str, SegmentOffset]) -> int:
    messages = 0
    for name, end in readable.items():
        after = planned[name].at if name in planned else EARLIEST
        if after < end.at:
            ledger = (await host.segment(name)).ledger
            messages += (await ledger.count(EntryRange(after, end.at), COUNT_MAX)).messages
    return messages
