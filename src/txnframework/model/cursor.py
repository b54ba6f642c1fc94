"""
The progress of a subscription on a segment, and pure functions on it.

A cursor consists of the mark-delete position, up to which everything is acknowledged, and of the acknowledgments beyond
it. These are ranges of entries, and the indexes of batches that are partly acknowledged. Uniting acknowledgments with a
cursor is commutative and idempotent. So any process may do it, in any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from txnframework.model.acks import Ack, AckState
from txnframework.model.entry_ranges import EntryRanges, Range, RangeChunk
from txnframework.model.ids import Branch
from txnframework.model.metadata import Put
from txnframework.model.partial_entries import PartialChunk, PartialEntries, bits_of, bits_up_to
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import CursorRecord

_INDEX_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Cursor:
    """
    A cursor's state; ``deleted``: entries that are acknowledged beyond ``mark_delete``; ``partial``: those of which
    some messages are.

    ``family``: only its transactions may acknowledge, because the cursor was made after a migration of the topic to
    that family, on a segment from before it; empty: those of each family.
    """

    incarnation: int
    mark_delete: Position
    deleted: EntryRanges = field(default_factory=EntryRanges)
    partial: PartialEntries = field(default_factory=PartialEntries)
    tombstone: bool = False
    family: str = ""

    def admits(self, family: str) -> bool:
        """Return whether transactions of a family may acknowledge."""
        return self.family in ("", family)


BranchAcks = tuple[Branch, tuple[Ack, ...]]
"""Individual acknowledgments of a branch."""


@dataclass(frozen=True, slots=True)
class CursorMove:
    """
    A planned move of a cursor by acknowledgments of one or several branches.

    ``put`` replaces the cursor's record only if it has not changed since it was read, as ``before``. ``incarnation`` is
    the cursor's.
    """

    put: Put
    incarnation: int
    parts: tuple[BranchAcks, ...]
    before: Cursor


def beginning_after(incarnation: int, position: Position) -> Cursor:
    """
    Return a cursor with exactly the messages up to ``position`` acknowledged.

    ``position`` is that of an entry, or of a message that is not the last one of its batch.
    """
    if position.batch_index < 0:
        return Cursor(incarnation, position)
    before = Position(position.ledger_id, position.entry_id - 1)
    partial = PartialEntries().changed({position.entry: bits_up_to(position.batch_index)})
    return Cursor(incarnation, before, partial=partial)


def moved(cursor: Cursor, to: Position) -> Cursor:
    """Return the cursor after a seek: a new incarnation with exactly the messages up to ``to`` acknowledged."""
    sought = beginning_after(cursor.incarnation + 1, to)
    return replace(sought, family=cursor.family)


def state_of(cursor: Cursor, position: Position) -> AckState:
    """Return DELETED or PENDING for an entry, or for the message of it that ``batch_index`` names."""
    entry = position.entry
    if entry <= cursor.mark_delete or cursor.deleted.holds(entry):
        return AckState.DELETED
    if position.batch_index >= 0 and cursor.partial.bits(entry) >> position.batch_index & 1:
        return AckState.DELETED
    return AckState.PENDING


def changes_since(cursor: Cursor, before: Cursor | None) -> list[Range]:
    """
    Return ranges with every message that is acknowledged in ``cursor`` and was not in an earlier cursor.

    They may hold others. Without an earlier cursor of the same incarnation they hold all.
    """
    if before is None or before.incarnation != cursor.incarnation:
        return [(EARLIEST, reached_by(cursor))]
    found = [] if cursor.mark_delete == before.mark_delete else [(EARLIEST, end_of(cursor.mark_delete))]
    for ledger_id, first, last in cursor.deleted.new_since(before.deleted):
        found.append((Position(ledger_id, first), end_of(Position(ledger_id, last))))
    for ledger_id, entry_id, _ in cursor.partial.new_since(before.partial):
        entry = Position(ledger_id, entry_id)
        found.append((entry, end_of(entry)))
    return found


def reached_by(cursor: Cursor) -> Position:
    """Return a position that is not before any acknowledged message; whatever is behind it is PENDING."""
    last = max(cursor.mark_delete, cursor.deleted.last[1]) if cursor.deleted else cursor.mark_delete
    reached = end_of(last)
    return max(reached, cursor.partial.last) if cursor.partial else reached


def end_of(position: Position) -> Position:
    """Return a position that is not before any message of an entry; of a message, the message itself."""
    return position if position.batch_index >= 0 else Position(position.ledger_id, position.entry_id, _INDEX_MAX)


def unite(cursor: Cursor, acks: Iterable[Ack]) -> Cursor:
    """Return the cursor with ``acks`` acknowledged as well; repeated acknowledgments change nothing."""
    mark_delete = cursor.mark_delete
    done: list[Position] = []
    partial: dict[Position, int] = {}  # what is new of entries; no bits: nothing, or the whole entry
    for ack in acks:
        entry = ack.position.entry
        bits = partial[entry] if entry in partial else cursor.partial.bits(entry)
        if ack.cumulative:
            mark_delete = max(mark_delete, _mark_of(ack, bits, partial))
            continue
        united = _bits_with(ack, bits)
        partial[entry] = united or 0
        if united is None and entry > mark_delete:
            done.append(entry)
    return _settled(cursor, mark_delete, cursor.deleted.adding(done), partial)


def advance(cursor: Cursor, to: Position) -> Cursor:
    """Return the cursor with everything up to ``to`` acknowledged; never moves back."""
    return _settled(cursor, max(cursor.mark_delete, to.entry), cursor.deleted, {})


def _bits_with(ack: Ack, bits: int) -> int | None:
    """Return the bits of an entry with those that an individual ack names; None: the whole entry."""
    indexes = ack.batch_indexes
    if indexes is None and ack.position.batch_index >= 0:
        indexes = frozenset({ack.position.batch_index})
    if indexes is None or len(indexes) >= ack.batch_size:
        return None
    bits |= bits_of(index for index in indexes if index < ack.batch_size)
    return None if bits.bit_count() >= ack.batch_size else bits


def _mark_of(ack: Ack, bits: int, partial: dict[Position, int]) -> Position:
    """
    Return the new mark-delete position of a cumulative ack.

    If the ack ends in the middle of a batch, the mark-delete position is before that entry, and the acknowledged
    indexes of the entry are added to ``partial``.
    """
    position = ack.position
    entry = position.entry
    if position.batch_index < 0 or position.batch_index + 1 >= ack.batch_size:
        return entry
    bits |= bits_up_to(position.batch_index)
    if bits.bit_count() >= ack.batch_size:
        return entry
    partial[entry] = bits
    return Position(position.ledger_id, position.entry_id - 1)


def _settled(cursor: Cursor, mark_delete: Position, deleted: EntryRanges, partial: Mapping[Position, int]) -> Cursor:
    """Move the mark-delete position over the range that it touches, and drop partial batches that are complete."""
    mark_delete, deleted = deleted.beyond(mark_delete)
    bits = {entry: 0 if deleted.holds(entry) else bits for entry, bits in partial.items()}
    left = cursor.partial.changed(bits).beyond(mark_delete)
    return replace(cursor, mark_delete=mark_delete, deleted=deleted, partial=left)


def to_record(cursor: Cursor) -> CursorRecord:
    """Return the document that holds ``cursor``."""
    return CursorRecord(
        incarnation=cursor.incarnation,
        mark_delete=str(cursor.mark_delete),
        deleted=cursor.deleted.texts(),
        partial=cursor.partial.texts(),
        tombstone=cursor.tombstone,
        family=cursor.family or msgspec.UNSET,
    )


def from_record(record: CursorRecord) -> Cursor:
    """Return the cursor that ``record`` holds."""
    return Cursor(
        incarnation=record.incarnation,
        mark_delete=Position.parse(record.mark_delete),
        deleted=EntryRanges(map(RangeChunk.parse, record.deleted)),
        partial=PartialEntries(map(PartialChunk.parse, record.partial)),
        tombstone=record.tombstone,
        family="" if record.family is msgspec.UNSET else record.family,
    )
