"""
What a cumulative acknowledgment may not pass over: messages that its consumer was given, and somebody else finished.

A cumulative acknowledgment in a transaction stands for all that its consumer was given up to there and has not
acknowledged before. What of that is not done yet, as far as this process knows, ``Deliveries`` has, and the store looks
at it after the put. What is known to be done is remembered here, unless the consumer itself did it: outside
transactions, or in one that was committed and counts. One of its own that was aborted gave the message back, and then
it was somebody else who finished it.
"""

from __future__ import annotations

from collections.abc import Callable

from txnframework.model.ids import Branch
from txnframework.model.positions import Position

UNDECIDED_MAX = 1_000
"""How many transactions are remembered of which nobody has said yet whether they count."""


class Claims:
    """
    For each consumer, from where to where others finished what it had; pure.

    ``counts``: whether a branch's transaction was committed and the branch counts; None: that is not known.
    """

    def __init__(self, counts: Callable[[Branch], bool | None]) -> None:
        self._counts = counts
        self._lost: dict[int, tuple[Position, Position]] = {}
        # The first message that was acknowledged under each branch, and was found done.
        self._undecided: dict[int, dict[Branch, Position]] = {}

    def finished(self, consumer: int, position: Position, branch: Branch | None) -> None:
        """A message that a consumer had is done; ``branch``: under which it acknowledged it, None: it did not."""
        counts = False if branch is None else self._counts(branch)
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
        Return the first message up to here that others finished, None if there is none.

        What was acknowledged under a branch of which nothing is known counts as finished by others.
        """
        for branch, position in tuple(self._undecided.get(consumer, {}).items()):
            if self._counts(branch) is not None:
                del self._undecided[consumer][branch]
                self.finished(consumer, position, branch)
        found = [*self._undecided.get(consumer, {}).values()]
        found += [self._lost[consumer][0]] if consumer in self._lost else []
        first = min(found, default=None)
        return first if first is not None and first <= upto else None

    def undecided(self, consumer: int, upto: Position) -> set[Branch]:
        """Return the branches that have to be asked for before ``first_lost`` is."""
        return {branch for branch, first in self._undecided.get(consumer, {}).items() if first <= upto}

    def crowded(self) -> set[Branch]:
        """Return the branches of which the outcome is to be asked for, because too many are remembered."""
        for consumer, branches in self._undecided.items():
            if len(branches) > UNDECIDED_MAX:
                self.first_lost(consumer, max(branches.values()))
        return {one for branches in self._undecided.values() if len(branches) > UNDECIDED_MAX for one in branches}

    def acknowledged(self, consumer: int, upto: Position) -> None:
        """A consumer acknowledged everything up to here outside transactions: it has no part in that any more."""
        if consumer in self._lost:
            first_lost, last_lost = self._lost.pop(consumer)
            if last_lost > upto:
                self._lost[consumer] = max(first_lost, upto), last_lost
        for branch, first in tuple(self._undecided.get(consumer, {}).items()):
            self._undecided[consumer][branch] = max(first, upto)

    def left_by(self, consumer: int) -> dict[Position, Branch | None]:
        """Return the first message that others finished, and the first under each branch that nobody has decided on."""
        found: dict[Position, Branch | None] = {first: one for one, first in self._undecided.get(consumer, {}).items()}
        if consumer in self._lost:
            found[self._lost[consumer][0]] = None
        return found

    def forget(self, consumer: int) -> None:
        """A consumer has nothing any more."""
        self._lost.pop(consumer, None)
        self._undecided.pop(consumer, None)

    def clear(self) -> None:
        """Nobody has anything any more."""
        self._lost.clear()
        self._undecided.clear()
