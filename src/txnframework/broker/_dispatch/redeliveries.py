"""How often messages were delivered, from one dispatch of a subscription in this process to the next one."""

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
    """Counts of messages that were not done, under one incarnation of the cursor."""

    incarnation: int = 0
    counts: Mapping[Position, int] = field(default_factory=dict)

    def under(self, cursor: Cursor) -> dict[Position, int]:
        """Return the counts of what is still not done; none, if someone sought in the meantime."""
        if self.incarnation != cursor.incarnation:
            return {}
        return {at: count for at, count in self.counts.items() if state_of(cursor, at) is not AckState.DELETED}


class RememberedRedeliveries:
    """
    The counts of dispatches that have ended here, of at most ``messages_max`` messages; the oldest are forgotten first.

    They are this process's memory: where another one takes over, or this one is started again, counting begins anew.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._messages = 0
        self._kept: OrderedDict[Key, Redeliveries] = OrderedDict()

    def keep(self, key: Key, ended: Redeliveries) -> None:
        """Remember the counts of a dispatch that has ended."""
        self.take(key)
        if not ended.counts:
            return
        self._kept[key] = ended
        self._messages += len(ended.counts)
        while self._messages > self._messages_max:
            self.take(next(iter(self._kept)))

    def take(self, key: Key) -> Redeliveries:
        """Remove and return the counts of the last dispatch, none if there was none."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return Redeliveries()
        self._messages -= len(kept.counts)
        return kept
