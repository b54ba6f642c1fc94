"""Delivery counts, passed from one dispatch of a subscription in this process to the next one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.positions import Position

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Redeliveries:
    """Delivery counts of unacknowledged messages, under one incarnation of the cursor."""

    incarnation: int = 0
    counts: Mapping[Position, int] = field(default_factory=dict)

    def under(self, cursor: Cursor) -> dict[Position, int]:
        """Return the counts of messages that are still unacknowledged; none if the subscription was moved meanwhile."""
        if self.incarnation != cursor.incarnation:
            return {}
        return {at: count for at, count in self.counts.items() if state_of(cursor, at) is not AckState.DELETED}


class RememberedRedeliveries:
    """
    The counts of ended dispatches, for at most ``messages_max`` messages; the oldest are forgotten first.

    They are kept in memory: after a take-over or a restart, counting starts again.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._messages = 0
        self._kept: OrderedDict[Key, Redeliveries] = OrderedDict()

    def keep(self, key: Key, ended: Redeliveries) -> None:
        """Remember the counts of an ended dispatch."""
        self.take(key)
        if not ended.counts:
            return
        self._kept[key] = ended
        self._messages += len(ended.counts)
        while self._messages > self._messages_max:
            self.take(next(iter(self._kept)))

    def take(self, key: Key) -> Redeliveries:
        """Remove and return the counts of the last dispatch, empty if there was none."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return Redeliveries()
        self._messages -= len(kept.counts)
        return kept
