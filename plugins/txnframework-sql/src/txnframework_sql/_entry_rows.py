"""Reading, counting and searching entries in the database: one step of a transaction on its thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from sqlalchemy import bindparam, select

from txnframework.errors import CorruptEntry, EntryTrimmed
from txnframework.model import Counted, EntryRange, LedgerEntry, Limit, Position
from txnframework_sql._database import Database, Row
from txnframework_sql._ledger_rows import Managed, end_of
from txnframework_sql.schema import entries, entry_id_of, ledger_segments, managed_ledgers, place_of

_SEGMENT = ledger_segments.c
_ANY_NUMBER = 1 << 31
_SEGMENTS = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries, _SEGMENT.messages)
    .where(
        _SEGMENT.managed_id == bindparam("of_managed_id"),
        _SEGMENT.ledger_id >= bindparam("from_ledger_id"),
        _SEGMENT.ledger_id <= bindparam("to_ledger_id"),
        _SEGMENT.trimming == 0,
        _SEGMENT.entries > 0,
    )
    .order_by(_SEGMENT.ledger_id)
    .limit(bindparam("items"))
)
_ENTRIES = (
    select(entries.c.place, entries.c.data)
    .where(entries.c.place >= bindparam("first"), entries.c.place <= bindparam("last"))
    .order_by(entries.c.place)
    .limit(bindparam("items"))
)
_TOTALS_AT = select(entries.c.messages_through, entries.c.appended_ms).where(entries.c.place == bindparam("at"))
_FROM_TIME = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries)
    .where(
        _SEGMENT.managed_id == bindparam("of_managed_id"),
        _SEGMENT.appended_ms >= bindparam("from_ms"),
        _SEGMENT.trimming == 0,
        _SEGMENT.entries > 0,
    )
    .order_by(_SEGMENT.ledger_id)
    .limit(1)
)
_TRIMMED = select(
    managed_ledgers.c.first_ledger_id, managed_ledgers.c.trimmed_ledger_id, managed_ledgers.c.trimmed_entry_id
).where(managed_ledgers.c.id == bindparam("of_managed_id"))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Entries ``first`` to ``last`` of one ledger; ``messages`` of the whole ledger if that is all of it."""

    ledger_id: int
    first: int
    last: int
    messages: int | None


def read(database: Database, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
    """Return the first entries of a range."""
    end_of(database, managed)
    _require_untrimmed(database, managed, range_)
    found: list[LedgerEntry] = []
    room = limit.bytes
    for stretch in _stretches(database, managed, range_, limit.items):
        expected = stretch.first
        for place, data in _entries_of(database, stretch, max(limit.items, 1) - len(found)):
            if entry_id_of(place) != expected:
                raise CorruptEntry(Position(stretch.ledger_id, expected), "it is missing", managed.name)
            room -= len(data)
            if found and room < 0:
                return tuple(found)
            found.append(LedgerEntry(Position(stretch.ledger_id, expected), data))
            expected += 1
        if len(found) >= limit.items:
            break
        if expected <= stretch.last:
            raise CorruptEntry(Position(stretch.ledger_id, expected), "it is missing", managed.name)
    return tuple(found)


def count(database: Database, managed: Managed, range_: EntryRange, messages_max: int) -> Counted:
    """Return how far the messages reach, by whole entries and by at least one."""
    end_of(database, managed)
    counted = Counted(range_.after, 0)
    for stretch in _stretches(database, managed, range_):
        before = _messages_through(database, stretch.ledger_id, stretch.first - 1)
        through = stretch.messages
        if through is None:
            through = _messages_through(database, stretch.ledger_id, stretch.last)
        room = messages_max - counted.messages
        last = stretch.last
        if through - before > room:
            last, through = _reach(database, stretch, before + room)
            if last < stretch.first and counted.upto == range_.after:
                last, through = stretch.first, _messages_through(database, stretch.ledger_id, stretch.first)
        if last >= stretch.first:
            counted = Counted(Position(stretch.ledger_id, last), counted.messages + through - before)
        if last < stretch.last:
            break
    return counted


def find_time(database: Database, managed: Managed, published_ms: int) -> Position:
    """Return the position before the first entry of this time or later."""
    end = end_of(database, managed)
    found = database.row(_FROM_TIME, of_managed_id=managed.id, from_ms=published_ms)
    if found is None:
        return end.last
    ledger_id, size = found

    def is_before(entry_id: int) -> bool:
        return _totals(database, ledger_id, entry_id)[1] < published_ms

    return Position(ledger_id, _last_with(is_before, 0, size - 1))


def _stretches(
    database: Database, managed: Managed, range_: EntryRange, ledgers_max: int = _ANY_NUMBER
) -> list[_Stretch]:
    """Return what a range covers of each of its ledgers that are left."""
    after, upto = range_.after, range_.upto
    if after >= upto:
        return []
    rows = database.rows(
        _SEGMENTS,
        of_managed_id=managed.id,
        from_ledger_id=after.ledger_id,
        to_ledger_id=upto.ledger_id,
        # The range may begin behind the last entry of its first ledger.
        items=ledgers_max + 1,
    )
    stretches = []
    for ledger_id, size, messages in rows:
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        last = min(upto.entry_id, size - 1) if ledger_id == upto.ledger_id else size - 1
        if first <= last:
            stretches.append(_Stretch(ledger_id, first, last, messages if last == size - 1 else None))
    return stretches


def _entries_of(database: Database, stretch: _Stretch, items_max: int) -> Generator[Row, None, None]:
    """Yield the first entries of a stretch, one by one, so that no more data is fetched than is wanted."""
    first, last = place_of(stretch.ledger_id, stretch.first), place_of(stretch.ledger_id, stretch.last)
    return database.stream(_ENTRIES, first=first, last=last, items=items_max)


def _require_untrimmed(database: Database, managed: Managed, range_: EntryRange) -> None:
    """Raise EntryTrimmed if entries of the range were trimmed."""
    found = database.row(_TRIMMED, of_managed_id=managed.id)
    if found is None or found[1] is None:
        return
    gone, first_ever = Position(found[1], found[2]), Position(found[0], 0)
    if range_.after < gone and range_.upto >= first_ever and range_.after < range_.upto:
        missing = max(first_ever, Position(range_.after.ledger_id, range_.after.entry_id + 1))
        rest = EntryRange(gone, end_of(database, managed).last)
        left = next(iter(_stretches(database, managed, rest, 1)), None)
        raise EntryTrimmed(managed.name, missing, None if left is None else Position(left.ledger_id, left.first))


def _reach(database: Database, stretch: _Stretch, through_max: int) -> tuple[int, int]:
    """Return the last entry up to which the ledger has no more messages than this, and how many it has there."""

    def fits(entry_id: int) -> bool:
        return _messages_through(database, stretch.ledger_id, entry_id) <= through_max

    last = _last_with(fits, stretch.first, stretch.last)
    return last, _messages_through(database, stretch.ledger_id, last)


def _last_with(is_true: Callable[[int], bool], first: int, last: int) -> int:
    """Return the last of these numbers for which something is true that then stays false; ``first - 1`` if none is."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        if is_true(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _messages_through(database: Database, ledger_id: int, entry_id: int) -> int:
    return 0 if entry_id < 0 else _totals(database, ledger_id, entry_id)[0]


def _totals(database: Database, ledger_id: int, entry_id: int) -> tuple[int, int]:
    """Return messages up to and including an entry, and when it was appended."""
    found = database.row(_TOTALS_AT, at=place_of(ledger_id, entry_id))
    if found is None:
        raise CorruptEntry(Position(ledger_id, entry_id), "it is missing")
    return found[0], found[1]
