"""Steps that read, count and search entries."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Executable, Select, bindparam, case, select

from txnframework.errors import CorruptEntry, EntryTrimmed
from txnframework.model import EntryRange, LedgerEntry, Limit, MessageCount, Position
from txnframework_sql.schema import entries, entry_id_of, ledger_segments, managed_ledgers, place_of
from txnframework_sql.steps.ledgers import LedgerRef, end_of
from txnframework_sql.steps.statements import Row, Steps, first_rows, row, rows

_SEGMENT = ledger_segments.c
_COUNTED_LEDGERS = 16
"""The number of ledgers that a count reads first: a bounded count seldom needs more."""
_SEGMENTS = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries, _SEGMENT.messages, _SEGMENT.appended_ms)
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
_THROUGH = select(entries.c.messages_through, entries.c.appended_ms).where(entries.c.place == bindparam("at"))


def _last_before(is_before: ColumnElement[bool]) -> Select[tuple[int, int]]:
    """
    Return a statement that finds, by bisection, the last place at which a monotonic condition is true.

    It searches the places above ``low`` up to ``high``, and returns ``low`` if none is found. If ``low`` is below
    ``high`` in its result, the entry in the middle is missing.
    """
    places = select(
        bindparam("low", type_=entries.c.place.type).label("low"),
        bindparam("high", type_=entries.c.place.type).label("high"),
    ).cte("places", recursive=True)
    middle = places.c.low + (places.c.high - places.c.low + 1) // 2
    half = (
        select(
            case((is_before, middle), else_=places.c.low),
            case((is_before, places.c.high), else_=middle - 1),
        )
        .select_from(places.join(entries, entries.c.place == middle))
        .where(places.c.low < places.c.high)
    )
    places = places.union_all(half)
    return select(places.c.low, places.c.high).order_by(places.c.high - places.c.low).limit(1)


_LAST_WITHIN = _last_before(entries.c.messages_through <= bindparam("through_max"))
_LAST_BEFORE_TIME = _last_before(entries.c.appended_ms < bindparam("from_ms"))
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
class _Through:
    """Messages of a ledger up to and including an entry, and when that entry was appended; None: there is no entry."""

    messages: int
    appended_ms: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """Entries ``first`` to ``last`` of one ledger; ``through``: totals at its last entry, if the span ends there."""

    ledger_id: int
    first: int
    last: int
    through: _Through | None


@dataclass(slots=True)
class _ByteBudget:
    """The number of bytes that may still be read; the first entry always fits."""

    bytes: int
    is_begun: bool = False
    is_used_up: bool = False

    def fits(self, entry: Row) -> bool:
        """Return whether an entry still fits; no entry after an unfitting one does."""
        self.bytes -= len(entry[1])
        self.is_used_up = self.is_begun and self.bytes < 0
        self.is_begun = True
        return not self.is_used_up


def read(managed: LedgerRef, range_: EntryRange, limit: Limit) -> Steps[tuple[LedgerEntry, ...]]:
    """Return the first entries of a range."""
    yield from end_of(managed)
    yield from _require_untrimmed(managed, range_)
    found: list[LedgerEntry] = []
    budget = _ByteBudget(limit.bytes)
    for span in (yield from spans_of(managed, range_, limit.items)):
        expected = span.first
        for place, data in (yield from _entries_of(span, max(limit.items, 1) - len(found), budget)):
            if entry_id_of(place) != expected:
                raise CorruptEntry(Position(span.ledger_id, expected), "it is missing", managed.name)
            found.append(LedgerEntry(Position(span.ledger_id, expected), data))
            expected += 1
        if budget.is_used_up or len(found) >= limit.items:
            break
        if expected <= span.last:
            raise CorruptEntry(Position(span.ledger_id, expected), "it is missing", managed.name)
    return tuple(found)


def count(managed: LedgerRef, range_: EntryRange, messages_max: int) -> Steps[MessageCount]:
    """Return how far the messages reach, in whole entries and at least one entry."""
    yield from end_of(managed)
    counted, page = MessageCount(range_.after, 0), _COUNTED_LEDGERS
    left = range_
    while spans := (yield from spans_of(managed, left, page)):
        counted, reached = yield from _counted(spans, counted, range_.after, messages_max)
        if not reached or len(spans) < page:
            break
        left = EntryRange(counted.upto, range_.upto)
        # An unbounded count reads many ledgers; larger pages keep the number of statements low.
        page *= 8
    return counted


def _counted(
    spans: list[Span], counted: MessageCount, after: Position, messages_max: int
) -> Steps[tuple[MessageCount, bool]]:
    """Return the count including these spans, and whether it reaches the end of the last one."""
    for span in spans:
        before = (yield from _through(span.ledger_id, span.first - 1)).messages
        through = span.through
        if through is None:
            through = yield from _through(span.ledger_id, span.last)
        messages_left = messages_max - counted.messages
        last = span.last
        if through.messages - before > messages_left:
            last, through = yield from _reach(span, before + messages_left)
            if last < span.first and counted.upto == after:
                last = span.first
                through = yield from _through(span.ledger_id, last)
        if last >= span.first:
            messages = counted.messages + through.messages - before
            counted = MessageCount(Position(span.ledger_id, last), messages, through.appended_ms)
        if last < span.last:
            return counted, False
    return counted, True


def find_time(managed: LedgerRef, published_ms: int) -> Steps[Position]:
    """Return the position before the first entry of this time or later."""
    end = yield from end_of(managed)
    found = yield from row(_FROM_TIME, of_managed_id=managed.id, from_ms=published_ms)
    if found is None:
        return end.last
    ledger_id, size = found

    return Position(ledger_id, (yield from _last(_LAST_BEFORE_TIME, ledger_id, 0, size - 1, from_ms=published_ms)))


def spans_of(managed: LedgerRef, range_: EntryRange, ledgers_max: int) -> Steps[list[Span]]:
    """Return the part of a range in each of its remaining ledgers."""
    after, upto = range_.after, range_.upto
    if after >= upto:
        return []
    found = yield from rows(
        _SEGMENTS,
        of_managed_id=managed.id,
        from_ledger_id=after.ledger_id,
        to_ledger_id=upto.ledger_id,
        # The range may begin after the last entry of its first ledger.
        items=ledgers_max + 1,
    )
    spans = []
    for ledger_id, size, messages, appended_ms in found:
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        last = min(upto.entry_id, size - 1) if ledger_id == upto.ledger_id else size - 1
        if first <= last:
            through = _Through(messages, appended_ms) if last == size - 1 else None
            spans.append(Span(ledger_id, first, last, through))
    return spans


def _entries_of(span: Span, items_max: int, budget: _ByteBudget) -> Steps[list[Row]]:
    """Return the first entries of a span that fit; at most one more entry is fetched."""
    first, last = place_of(span.ledger_id, span.first), place_of(span.ledger_id, span.last)
    return (yield from first_rows(_ENTRIES, budget.fits, first=first, last=last, items=items_max))


def _require_untrimmed(managed: LedgerRef, range_: EntryRange) -> Steps[None]:
    """Raise EntryTrimmed if entries of the range were trimmed."""
    found = yield from row(_TRIMMED, of_managed_id=managed.id)
    if found is None or found[1] is None:
        return
    gone, first_ever = Position(found[1], found[2]), Position(found[0], 0)
    if range_.after < gone and range_.upto >= first_ever and range_.after < range_.upto:
        missing = max(first_ever, Position(range_.after.ledger_id, range_.after.entry_id + 1))
        rest = EntryRange(gone, (yield from end_of(managed)).last)
        left = next(iter((yield from spans_of(managed, rest, 1))), None)
        raise EntryTrimmed(managed.name, missing, None if left is None else Position(left.ledger_id, left.first))


def _reach(span: Span, through_max: int) -> Steps[tuple[int, _Through]]:
    """Return the last entry up to which the ledger has at most this many messages, and the number of messages there."""
    last = yield from _last(_LAST_WITHIN, span.ledger_id, span.first, span.last, through_max=through_max)
    return last, (yield from _through(span.ledger_id, last))


def _last(statement: Executable, ledger_id: int, first: int, last: int, **parameters: object) -> Steps[int]:
    """Return the last of these entries at which a monotonic condition is true; ``first - 1`` if there is none."""
    # The place before the first entry of a ledger belongs to no entry, and is never read.
    found = yield from row(statement, low=place_of(ledger_id, first) - 1, high=place_of(ledger_id, last), **parameters)
    assert found is not None
    low, high = found
    if low < high:
        raise CorruptEntry(Position(ledger_id, entry_id_of(low + (high - low + 1) // 2)), "it is missing")
    return int(low) - place_of(ledger_id, 0)


def _through(ledger_id: int, entry_id: int) -> Steps[_Through]:
    """Return how many messages a ledger has up to and including an entry, and when that entry was appended."""
    if entry_id < 0:
        return _Through(0, None)
    found = yield from row(_THROUGH, at=place_of(ledger_id, entry_id))
    if found is None:
        raise CorruptEntry(Position(ledger_id, entry_id), "it is missing")
    return _Through(int(found[0]), int(found[1]))


def messages_through(ledger_id: int, entry_id: int) -> Steps[int]:
    """Return how many messages a ledger has up to and including an entry."""
    return (yield from _through(ledger_id, entry_id)).messages
