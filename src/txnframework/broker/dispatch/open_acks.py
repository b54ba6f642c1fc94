"""Acknowledgments as a dispatch makes them, and those that open transactions hold; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnframework.model.acks import Ack, PendingAck
from txnframework.model.cursor import end_of
from txnframework.model.entry_ranges import Range
from txnframework.model.ids import TxnID
from txnframework.model.positions import EARLIEST, Position


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

    def ranges(self) -> list[Range]:
        """Return ranges of positions with every message that one of them covers."""
        some = [(position, end_of(position)) for position in self._single]
        return some + [(EARLIEST, end_of(one.ack.position)) for one in self._cumulative]

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
