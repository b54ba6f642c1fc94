"""
Messages that a cumulative acknowledgment must not cover: its consumer received them, and others finished them.

A cumulative acknowledgment in a transaction covers all earlier messages that its consumer received and has not
acknowledged. ``Deliveries`` holds those that are not finished as far as this process knows, and the store checks them
after the write. This module remembers the finished ones, except those that the consumer itself finished. A consumer
finishes a message outside transactions, or in a transaction that was committed and counts. If its transaction was
aborted, the message became free again and another consumer finished it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from txnframework.model.acks import Ack, PendingAck
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position

UNDECIDED_MAX = 1_000
"""The number of branches with an unknown outcome that are remembered."""


class OpenAcks:
    """
    The acknowledgments that open transactions hold, as of one refresh.

    Only acknowledgments of one ``incarnation`` of the cursor are included. The cursor is read after them, so a seek in
    between voids earlier acknowledgments.
    """

    def __init__(self, pending: Mapping[TxnID, tuple[PendingAck, ...]], incarnation: int) -> None:
        # Keyed by message position, or by entry position for whole batches. So a look-up has constant cost, however
        # many messages of a batch were acknowledged individually.
        self._single: dict[Position, PendingAck] = {}
        self._cumulative: list[PendingAck] = []
        for one in (ack for acks in pending.values() for ack in acks if ack.incarnation == incarnation):
            if one.ack.cumulative:
                self._cumulative.append(one)
            else:
                self._single.update((position, one) for position in _positions_of(one.ack))
        self.is_empty = not self._single and not self._cumulative

    def holder(self, position: Position) -> PendingAck | None:
        """Return the acknowledgment that covers a message; None if there is none."""
        found = self._single.get(position) or self._single.get(position.entry)
        return found or next((one for one in self._cumulative if _reaches(one.ack, position)), None)


def _positions_of(ack: Ack) -> tuple[Position, ...]:
    """Return the positions of an individual acknowledgment: its messages, or a whole entry."""
    entry = ack.position.entry
    if ack.batch_indexes is None:
        return (ack.position,)
    return tuple(Position(entry.ledger_id, entry.entry_id, index) for index in sorted(ack.batch_indexes))


def _reaches(ack: Ack, position: Position) -> bool:
    """Return whether a cumulative acknowledgment covers a message."""
    at = ack.position
    return position.entry < at.entry or (position.entry == at.entry and (at.batch_index < 0 or position <= at))


def acks_of(positions: Iterable[tuple[Position, int]]) -> tuple[Ack, ...]:
    """Return individual acknowledgments of messages with their batch sizes: one per entry, in order."""
    indexes: dict[Position, set[int]] = {}
    sizes: dict[Position, int] = {}
    for position, size in positions:
        indexes.setdefault(position.entry, set()).add(position.batch_index)
        sizes[position.entry] = size
    return tuple(
        Ack(entry, sizes[entry], None if len(found) >= sizes[entry] else frozenset(found))
        for entry, found in sorted(indexes.items())
    )


def cumulative_ack(position: Position, batch_size: int) -> Ack:
    """Return the acknowledgment of a message and all before it; of the whole entry if the message is its last."""
    return Ack(position.entry if position.batch_index >= batch_size - 1 else position, batch_size, cumulative=True)


class Claims:
    """
    For each consumer, the range in which others finished messages that it had received; pure.

    ``counts`` returns whether a branch counts: its transaction was committed with it. None means unknown.
    """

    def __init__(self, counts: Callable[[Branch], bool | None]) -> None:
        self._counts = counts
        self._lost: dict[int, tuple[Position, Position]] = {}
        # For each branch, the first message that was acknowledged in it and was found finished.
        self._undecided: dict[int, dict[Branch, Position]] = {}

    def finished(self, consumer: int, position: Position, branch: Branch | None) -> None:
        """
        Note that a consumer's message is finished; ``branch`` is where this consumer acknowledged it, None if it did
        not.
        """
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
        Return the first message up to here that others finished; None if there is none.

        A message that was acknowledged in a branch with an unknown outcome counts as finished by others.
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
