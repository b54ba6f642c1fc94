"""What waits in each segment: how many messages, and how many of them were stored up to a moment.

Nothing is read. A ledger counts and searches by bisection, and lists its closed ledgers where a count goes over many of
them; so what was counted once is kept, and the next batch counts only what was added since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from txnframework.broker import Host
from txnframework.interfaces import IManagedLedger
from txnframework.model.ledger import Counted
from txnframework.model.positions import EntryRange, Position

COUNT_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages after ``after`` up to ``upto``; the last of them was stored at ``stored_ms``, None where none waits."""

    after: Position
    upto: Position
    messages: int
    stored_ms: int | None = None


@dataclass(slots=True)
class Backlog:
    """Counts segments of one load."""

    host: Host
    _known: dict[str, Waiting] = field(default_factory=dict)

    async def waiting(self, name: str, after: Position, upto: Position) -> Waiting:
        """Return what waits in a segment."""
        known = self._known.get(name)
        if known is None or known.after != after or known.upto > upto:
            # Another place than the last batch ended at: the first batch of a run, or one that was planned in vain.
            known = Waiting(after, after, 0)
        if known.upto < upto:
            added = await self.count(name, known.upto, upto)
            stored_ms = known.stored_ms if added.appended_ms is None else added.appended_ms
            known = Waiting(after, upto, known.messages + added.messages, stored_ms)
        self._known[name] = known
        return known

    async def count(self, name: str, after: Position, upto: Position, messages_max: int = COUNT_MAX) -> Counted:
        """Return how far so many messages reach, by whole entries and by at least one."""
        return await (await self._ledger(name)).count(EntryRange(after, upto), messages_max)

    async def until(self, name: str, after: Position, upto: Position, stored_ms: int) -> Position:
        """Return the place behind the last entry that was stored at ``stored_ms`` or before, between the two."""
        return min(upto, max(after, await (await self._ledger(name)).find_time(stored_ms + 1)))

    def admit(self, admitted: Mapping[str, tuple[Position, int]]) -> None:
        """Take note of where a batch ends in each segment, and how many messages it takes of it."""
        for name, (end, messages) in admitted.items():
            known = self._known.get(name)
            if known is not None:
                # Less than was counted is there where it was trimmed meanwhile.
                left = known.messages - messages if end < known.upto else 0
                self._known[name] = Waiting(end, max(known.upto, end), left, known.stored_ms if left else None)

    async def _ledger(self, name: str) -> IManagedLedger:
        return (await self.host.segment(name)).ledger
