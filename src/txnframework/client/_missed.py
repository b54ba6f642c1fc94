"""What a consumer received under leases that it lost, and did not receive again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnframework.broker import Host
from txnframework.model.ids import Branch
from txnframework.model.positions import Position


class Missed:
    """
    Messages of one segment that the user may have processed, and that others may have finished since.

    A consumer that stands by gets its turn again without the user's knowing. Whatever others have finished in between
    does not come again, so a cumulative acknowledgment must not pass over it. What comes again, and what the consumer
    acknowledges itself, is not missed any more. When someone seeks, all of it is void.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        # By their positions: under which branch the consumer acknowledged it itself, if it did.
        self._messages: dict[Position, Branch | None] = {}
        # That of the cursor under which they were received.
        self._incarnation = 0

    def begin_at(self, incarnation: int) -> None:
        """Messages come under this incarnation from now on; if it is another one, someone sought in between."""
        if incarnation != self._incarnation:
            self._messages.clear()
            self._incarnation = incarnation

    def add(self, messages: Mapping[Position, Branch | None], incarnation: int) -> None:
        """The lease was lost under which these were received, under this incarnation."""
        self.begin_at(incarnation)
        self._messages.update(messages)

    def received(self, position: Position) -> None:
        """A message came again."""
        self._messages.pop(position, None)

    def acknowledged(self, positions: Iterable[Position], branch: Branch | None) -> None:
        """The consumer has acknowledged these itself, outside transactions or under a branch."""
        for position in positions:
            if position in self._messages:
                if branch is None:
                    del self._messages[position]
                else:
                    self._messages[position] = branch

    def acknowledged_upto(self, upto: Position) -> None:
        """The consumer has acknowledged everything up to here, outside transactions."""
        self.acknowledged([one for one in self._messages if one <= upto], None)

    def clear(self) -> None:
        """The user wants everything again."""
        self._messages.clear()

    async def resolve(self) -> None:
        """Ask for the outcomes of the transactions in which the consumer acknowledged some of it."""
        for branch in sorted({one for one in self._messages.values() if one is not None}):
            if self._host.outcomes.counts(branch) is None:
                await self._host.outcomes.ask(await self._host.coordinator_for(branch.txn_id), branch)

    def first(self, upto: Position | None = None) -> Position | None:
        """Return the first of them, up to here; what was acknowledged in a transaction that counts is none of them."""
        counts = self._host.outcomes.counts
        self._messages = {at: one for at, one in self._messages.items() if one is None or not counts(one)}
        first = min(self._messages, default=None)
        return None if first is None or (upto is not None and first > upto) else first
