"""Delivery counts of ended dispatches, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Delivery counts of unacknowledged messages, under one incarnation of the cursor."""

    incarnation: int = 0
    counts: Mapping[Position, int] = field(default_factory=dict)

    def under(self, cursor: Cursor) -> dict[Position, int]:
        """Return the counts of messages that are still unacknowledged; none if the subscription was moved meanwhile."""
        if self.incarnation != cursor.incarnation:
            return {}
        return {at: count for at, count in self.counts.items() if state_of(cursor, at) is not AckState.DELETED}


class DeliveryCountCache:
    """
    The counts of ended dispatches, for at most ``messages_max`` messages; the oldest are forgotten first.

    They are kept in memory. ``DurableCounts`` keeps those of consumers that need them after a restart.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._messages = 0
        self._kept: OrderedDict[tuple[str, str], DeliveryCounts] = OrderedDict()

    def keep(self, key: tuple[str, str], ended: DeliveryCounts) -> None:
        """Remember the counts of an ended dispatch."""
        self.take(key)
        if not ended.counts:
            return
        self._kept[key] = ended
        self._messages += len(ended.counts)
        while self._messages > self._messages_max:
            self.take(next(iter(self._kept)))

    def take(self, key: tuple[str, str]) -> DeliveryCounts:
        """Remove and return the counts of the last dispatch, empty if there was none."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return DeliveryCounts()
        self._messages -= len(kept.counts)
        return kept
