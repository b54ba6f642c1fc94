"""
Messages that a cumulative acknowledgment must not cover: its consumer received them, and others finished them.

A cumulative acknowledgment in a transaction covers all earlier messages that its consumer received and has not
acknowledged. ``Deliveries`` holds those that are not finished as far as this process knows, and the store checks them
after the write. This module remembers the finished ones, except those that the consumer itself finished. A consumer
finishes a message outside transactions, or in a transaction that was committed and counts. If its transaction was
aborted, the message became free again and another consumer finished it.
"""

from __future__ import annotations

from collections.abc import Callable

from txnframework.model.ids import Branch
from txnframework.model.positions import Position

UNDECIDED_MAX = 1_000
"""The number of branches with an unknown outcome that are remembered."""


class Claims:
    """
    For each consumer, the range in which others finished messages that it had received; pure.

    ``counts`` returns whether a branch counts: its transaction was committed with it. None means unknown.
    """

    def __init__(self, counts: Callable[[Branch], bool | None]) -> None:
        self.counts = counts
        self._lost: dict[int, tuple[Position, Position]] = {}
        # For each branch, the first message that was acknowledged in it and was found finished.
        self._undecided: dict[int, dict[Branch, Position]] = {}

    def finished(self, consumer: int, position: Position, branch: Branch | None) -> None:
        """
        Note that a consumer's message is finished; ``branch`` is where this consumer acknowledged it, None if it did
        not.
        """
        counts = False if branch is None else self.counts(branch)
        if counts:
            return
        if counts is None and branch is not None:
            first = self._undecided.setdefault(consumer, {})
            first[branch] = min(position, first.get(branch, position))
            return
        first_lost, last_lost = self._lost.get(consumer, (position, position))
        self._lost[consumer] = min(first_lost, position), max(last_lost, position)

    def first_lost(self, consumer: int, upto: Position) -> Position | None:
        """
        Return the first message up to here that others finished; None if there is none.

        A message that was acknowledged in a branch with an unknown outcome counts as finished by others.
        """
        for branch, position in tuple(self._undecided.get(consumer, {}).items()):
            if self.counts(branch) is not None:
                del self._undecided[consumer][branch]
                self.finished(consumer, position, branch)
        found = [*self._undecided.get(consumer, {}).values()]
        found += [self._lost[consumer][0]] if consumer in self._lost else []
        first = min(found, default=None)
        return first if first is not None and first <= upto else None

    def undecided(self, consumer: int, upto: Position) -> set[Branch]:
        """Return the branches whose outcomes must be asked for before ``first_lost`` is called."""
        return {branch for branch, first in self._undecided.get(consumer, {}).items() if first <= upto}

    def crowded(self) -> set[Branch]:
        """Return the branches whose outcomes must be asked for because too many are remembered."""
        for consumer, branches in self._undecided.items():
            if len(branches) > UNDECIDED_MAX:
                self.first_lost(consumer, max(branches.values()))
        return {one for branches in self._undecided.values() if len(branches) > UNDECIDED_MAX for one in branches}

    def acknowledged(self, consumer: int, upto: Position) -> None:
        """Note that a consumer acknowledged everything up to here outside transactions, so earlier claims end."""
        if consumer in self._lost:
            first_lost, last_lost = self._lost.pop(consumer)
            if last_lost > upto:
                self._lost[consumer] = max(first_lost, upto), last_lost
        for branch, first in tuple(self._undecided.get(consumer, {}).items()):
            self._undecided[consumer][branch] = max(first, upto)

    def left_by(self, consumer: int) -> dict[Position, Branch | None]:
        """Return the first message that others finished, and the first one in each branch with an unknown outcome."""
        found: dict[Position, Branch | None] = {first: one for one, first in self._undecided.get(consumer, {}).items()}
        if consumer in self._lost:
            found[self._lost[consumer][0]] = None
        return found

    def forget(self, consumer: int) -> None:
        """Forget a consumer's claims."""
        self._lost.pop(consumer, None)
        self._undecided.pop(consumer, None)

    def clear(self) -> None:
        """Forget all claims."""
        self._lost.clear()
        self._undecided.clear()
