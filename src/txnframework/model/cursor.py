"""
The progress of a subscription on a segment, and pure functions on it.

A cursor consists of the mark-delete position, up to which everything is acknowledged, and of the acknowledgments beyond
it. These are ranges of entries, and the indexes of batches that are partly acknowledged. Uniting acknowledgments with a
cursor is commutative and idempotent. So any process may do it, in any order and any number of times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from txnframework.model.acks import Ack, AckState
from txnframework.model.ids import Branch
from txnframework.model.metadata import Put
from txnframework.model.positions import Position
from txnframework.model.records import FORMAT, RETURN_FORMAT, CursorRecord

_INDEX_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Cursor:
    """
    A cursor's state; ``deleted`` are inclusive ranges, each within one ledger, sorted, with gaps between them.

    ``family``: only its transactions may acknowledge, since a migration to the topic's life ``family_life``; empty: no
    migration has limited it.
    """

    incarnation: int
    mark_delete: Position
    deleted: tuple[tuple[Position, Position], ...] = ()
    partial: dict[Position, frozenset[int]] = field(default_factory=dict)
    tombstone: bool = False
    family: str = ""
    family_life: int = 0

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
    return Cursor(incarnation, before, partial={position.entry: frozenset(range(position.batch_index + 1))})


def moved(cursor: Cursor, to: Position) -> Cursor:
    """Return the cursor after a seek: a new incarnation with exactly the messages up to ``to`` acknowledged."""
    sought = beginning_after(cursor.incarnation + 1, to)
    return replace(sought, family=cursor.family, family_life=cursor.family_life)


def state_of(cursor: Cursor, position: Position) -> AckState:
    """Return DELETED or PENDING for an entry, or for the message of it that ``batch_index`` names."""
    entry = position.entry
    if entry <= cursor.mark_delete or (cursor.deleted and _is_in(cursor.deleted, entry)):
        return AckState.DELETED
    if position.batch_index >= 0 and position.batch_index in cursor.partial.get(entry, frozenset()):
        return AckState.DELETED
    return AckState.PENDING


def reached_by(cursor: Cursor) -> Position:
    """Return a position that is not before any acknowledged message; whatever is behind it is PENDING."""
    last = max(cursor.mark_delete, cursor.deleted[-1][1]) if cursor.deleted else cursor.mark_delete
    reached = end_of(last)
    if cursor.partial:
        entry = max(cursor.partial)
        index = max(cursor.partial[entry], default=_INDEX_MAX)
        reached = max(reached, Position(entry.ledger_id, entry.entry_id, index))
    return reached


def end_of(position: Position) -> Position:
    """Return a position that is not before any message of an entry; of a message, the message itself."""
    return position if position.batch_index >= 0 else Position(position.ledger_id, position.entry_id, _INDEX_MAX)


def _is_in(ranges: Sequence[tuple[Position, Position]], entry: Position) -> bool:
    """Return whether an entry is in one of many ranges, by bisection: a whole backlog is tested entry by entry."""
    at = bisect_right(ranges, entry, key=_first_of)
    return at > 0 and entry <= ranges[at - 1][1]


def _first_of(entries: tuple[Position, Position]) -> Position:
    return entries[0]


def unite(cursor: Cursor, acks: Iterable[Ack]) -> Cursor:
    """Return the cursor with ``acks`` acknowledged as well; repeated acknowledgments change nothing."""
    mark_delete = cursor.mark_delete
    done = list(cursor.deleted)
    partial = dict(cursor.partial)
    for ack in acks:
        entry = ack.position.entry
        if ack.cumulative:
            mark_delete = max(mark_delete, _mark_of(ack, partial))
            continue
        indexes = _indexes_of(ack)
        if indexes is not None:
            indexes |= partial.pop(entry, frozenset())
            if len(indexes) < ack.batch_size:
                partial[entry] = indexes
                continue
        done.append((entry, entry))
    return _settled(cursor, mark_delete, done, partial)


def advance(cursor: Cursor, to: Position) -> Cursor:
    """Return the cursor with everything up to ``to`` acknowledged; never moves back."""
    return _settled(cursor, max(cursor.mark_delete, to.entry), list(cursor.deleted), dict(cursor.partial))


def _indexes_of(ack: Ack) -> frozenset[int] | None:
    """Return the indexes that an individual ack names; None: the whole entry."""
    if ack.batch_indexes is not None:
        return ack.batch_indexes
    return frozenset({ack.position.batch_index}) if ack.position.batch_index >= 0 else None


def _mark_of(ack: Ack, partial: dict[Position, frozenset[int]]) -> Position:
    """
    Return the new mark-delete position of a cumulative ack.

    If the ack ends in the middle of a batch, the mark-delete position is before that entry, and the acknowledged
    indexes of the entry are added to ``partial``.
    """
    position = ack.position
    entry = position.entry
    if position.batch_index < 0:
        return entry
    indexes = frozenset(range(position.batch_index + 1)) | partial.pop(entry, frozenset())
    if len(indexes) >= ack.batch_size:
        return entry
    partial[entry] = indexes
    return Position(position.ledger_id, position.entry_id - 1)


def _settled(
    cursor: Cursor,
    mark_delete: Position,
    done: list[tuple[Position, Position]],
    partial: dict[Position, frozenset[int]],
) -> Cursor:
    """Merge ranges, move the mark-delete position over adjacent ranges, and drop partial batches that are complete."""
    merged: list[tuple[Position, Position]] = []
    for first, last in sorted(done):
        if last <= mark_delete:
            continue
        if merged and _touches(merged[-1][1], first):
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    while merged and (_touches(mark_delete, merged[0][0])):
        mark_delete = max(mark_delete, merged.pop(0)[1])
    whole = replace(cursor, mark_delete=mark_delete, deleted=tuple(merged), partial={})
    left = {entry: indexes for entry, indexes in partial.items() if state_of(whole, entry) is AckState.PENDING}
    return replace(whole, partial=left)


def _touches(last: Position, first: Position) -> bool:
    """Return whether no entry can be between two entries, as far as their positions alone show."""
    return first <= last or (first.ledger_id == last.ledger_id and first.entry_id == last.entry_id + 1)


def to_record(cursor: Cursor) -> CursorRecord:
    """Return the document that holds ``cursor``."""
    return CursorRecord(
        format=RETURN_FORMAT if cursor.family else FORMAT,
        incarnation=cursor.incarnation,
        mark_delete=str(cursor.mark_delete),
        deleted=[(str(first), str(last)) for first, last in cursor.deleted],
        partial={str(entry): sorted(indexes) for entry, indexes in sorted(cursor.partial.items())},
        tombstone=cursor.tombstone,
        family=cursor.family or msgspec.UNSET,
        family_life=cursor.family_life if cursor.family else msgspec.UNSET,
    )


def from_record(record: CursorRecord) -> Cursor:
    """Return the cursor that ``record`` holds."""
    return Cursor(
        incarnation=record.incarnation,
        mark_delete=Position.parse(record.mark_delete),
        deleted=tuple((Position.parse(first), Position.parse(last)) for first, last in record.deleted),
        partial={Position.parse(entry): frozenset(indexes) for entry, indexes in record.partial.items()},
        tombstone=record.tombstone,
        family="" if record.family is msgspec.UNSET else record.family,
        family_life=0 if record.family_life is msgspec.UNSET else record.family_life,
    )
