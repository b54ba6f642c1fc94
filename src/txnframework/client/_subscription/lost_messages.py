"""Messages that a consumer received under leases that it has lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnframework.broker import Host
from txnframework.model.ids import Branch
from txnframework.model.positions import Position


class LostLeaseMessages:
    """
    Messages of one segment that the user may have processed under a lost lease.

    A consumer that stands by takes its lease again without notifying the user. Messages that other consumers finished
    in between are not redelivered, so a cumulative acknowledgment must not cover them. A message that is redelivered,
    or that the consumer acknowledges itself, is removed from here. A seek clears all of them.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.messages: dict[Position, Branch | None] = {}
        """For each position, the branch in which the consumer itself acknowledged the message, if it did."""
        # The cursor's incarnation under which they were received.
        self._incarnation = 0

    def begin_at(self, incarnation: int) -> None:
        """Set the incarnation of later messages; a new one means that the subscription was moved."""
        if incarnation != self._incarnation:
            self.messages.clear()
            self._incarnation = incarnation

    def add(self, messages: Mapping[Position, Branch | None], incarnation: int) -> None:
        """Add messages that were received under a lease that is now lost."""
        self.begin_at(incarnation)
        self.messages.update(messages)

    def received(self, position: Position) -> None:
        """Remove a message that was redelivered."""
        self.messages.pop(position, None)

    def acknowledged(self, positions: Iterable[Position], branch: Branch | None) -> None:
        """Note that the consumer acknowledged these itself, under a branch or (None) outside transactions."""
        for position in positions:
            if position in self.messages:
                if branch is None:
                    del self.messages[position]
                else:
                    self.messages[position] = branch

    def acknowledged_upto(self, upto: Position) -> None:
        """Note that the consumer acknowledged everything up to here, outside transactions."""
        self.acknowledged([one for one in self.messages if one <= upto], None)

    def clear(self) -> None:
        """Remove all messages: the user has requested redelivery."""
        self.messages.clear()

    async def resolve(self) -> None:
        """Load the outcomes of the transactions in which the consumer acknowledged some of these messages."""
        for branch in sorted({one for one in self.messages.values() if one is not None}):
            if self._host.own_transactions.outcomes.counts(branch) is None:
                await self._host.own_transactions.outcomes.load(await self._host.coordinator_for(branch.txn_id), branch)

    def first(self, upto: Position | None = None) -> Position | None:
        """Return the first message up to here; messages acknowledged in a committed branch are excluded."""
        counts = self._host.own_transactions.outcomes.counts
        self.messages = {at: one for at, one in self.messages.items() if one is None or not counts(one)}
        first = min(self.messages, default=None)
        return None if first is None or (upto is not None and first > upto) else first
