"""Steps that read whole stores, and that take the content of another store over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Executable, Table, bindparam, func, insert, select, tuple_, update

from txnframework.errors import CorruptEntry, InvalidInput
from txnframework.model import (
    Branch,
    EntryRange,
    IndexEntry,
    IndexPage,
    IndexRange,
    IndexReference,
    LedgerShape,
    LedgerSummary,
    Limit,
    Position,
    ProducerSequence,
    RememberedSequence,
    StoredEntry,
    TxnID,
)
from txnframework_sql.schema import (
    counters,
    entries,
    entry_id_of,
    index_entries,
    ledger_segments,
    managed_ledgers,
    place_of,
    producer_copies,
)
from txnframework_sql.steps.appends import newest_copy, raise_transaction_number
from txnframework_sql.steps.ledgers import end_of, find, find_id
from txnframework_sql.steps.reads import messages_through, spans_of
from txnframework_sql.steps.statements import Row, Steps, key_of, row, rows, write

T = TypeVar("T")

LEDGER_ID_MAX = 2**31 - 1
"""The highest ledger id of which a place is a number of 64 bits with sign."""

_ROWS_TOGETHER = 64
_MANAGED, _SEGMENT, _COPY, _INDEX = managed_ledgers.c, ledger_segments.c, producer_copies.c, index_entries.c

_LAST_ID = select(counters.c.value).where(counters.c.name == "ledger")
_SKIP_IDS = (
    update(counters)
    .where(counters.c.name == "ledger", counters.c.value < bindparam("higher"))
    .values(value=bindparam("higher"))
)
_SHAPE = select(_MANAGED.sealed, _MANAGED.first_ledger_id, _MANAGED.trimmed_ledger_id, _MANAGED.trimmed_entry_id).where(
    _MANAGED.id == bindparam("of_managed_id")
)
_LEDGERS = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries, _SEGMENT.messages, _SEGMENT.bytes, _SEGMENT.appended_ms)
    .where(_SEGMENT.managed_id == bindparam("of_managed_id"), _SEGMENT.trimming == 0)
    .order_by(_SEGMENT.ledger_id)
)
_LEDGERS_AMONG = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries)
    .where(
        _SEGMENT.managed_id == bindparam("of_managed_id"),
        _SEGMENT.ledger_id >= bindparam("first"),
        _SEGMENT.ledger_id <= bindparam("last"),
    )
    .order_by(_SEGMENT.ledger_id)
)
_LEDGER_BEFORE = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries)
    .where(_SEGMENT.managed_id == bindparam("of_managed_id"), _SEGMENT.ledger_id < bindparam("first"))
    .order_by(_SEGMENT.ledger_id.desc())
    .limit(1)
)
_STORED = (
    select(entries.c.place, entries.c.messages_through, entries.c.appended_ms, entries.c.data)
    .where(entries.c.place >= bindparam("first"), entries.c.place <= bindparam("last"))
    .order_by(entries.c.place)
    .limit(bindparam("items"))
)
# Only as many entries as fit: the lengths are known without reading the data.
_SIZES = (
    select(func.length(entries.c.data))
    .where(entries.c.place >= bindparam("first"), entries.c.place <= bindparam("last"))
    .order_by(entries.c.place)
    .limit(bindparam("items"))
)
_LAST_PLACE = select(func.max(entries.c.place)).where(
    entries.c.place >= bindparam("first"), entries.c.place < bindparam("stop")
)
_COPIES = (
    select(
        _COPY.producer,
        _COPY.first,
        _COPY.last,
        _COPY.ledger_id,
        _COPY.entry_id,
        _COPY.txn,
        _COPY.branch,
        _COPY.appended_ms,
    )
    .where(
        _COPY.managed_id == bindparam("of_managed_id"),
        tuple_(_COPY.producer, _COPY.last) > tuple_(bindparam("after_producer"), bindparam("after_last")),
    )
    .order_by(_COPY.producer, _COPY.last)
    .limit(bindparam("items"))
)
_TAKEN_IDS = select(_SEGMENT.ledger_id).where(
    _SEGMENT.ledger_id >= bindparam("first"), _SEGMENT.ledger_id <= bindparam("last")
)
_ADD_MANAGED = (
    insert(managed_ledgers)
    .values({column.name: bindparam(column.name) for column in _MANAGED if column.name != "id"})
    .returning(_MANAGED.id)
)
_LINES = (
    select(_INDEX.key, _INDEX.path, _INDEX.partition)
    .where(_INDEX.index_name == bindparam("index"), _INDEX.key >= bindparam("start"), _INDEX.key < bindparam("stop"))
    .order_by(_INDEX.key, _INDEX.path, _INDEX.partition)
    .limit(bindparam("items"))
)
_LINES_AFTER = _LINES.where(
    tuple_(_INDEX.key, _INDEX.path, _INDEX.partition)
    > tuple_(bindparam("start"), bindparam("after_path"), bindparam("after_partition"))
)


# -- many rows at once --------------------------------------------------------------------------------


@cache
def _insert_many(table: Table, number: int) -> Executable:
    """Return a statement that inserts this number of rows; their values are called ``<column>_<row>``."""
    return insert(table).values(
        [{column.name: bindparam(f"{column.name}_{at}") for column in table.c} for at in range(number)]
    )


def _write_many(table: Table, found: Sequence[dict[str, Any]]) -> Steps[None]:
    """Insert rows with few statements, of which there are only two kinds."""
    for some in _groups(found, _ROWS_TOGETHER):
        groups = [some] if len(some) == _ROWS_TOGETHER else [[one] for one in some]
        for group in groups:
            values = {f"{name}_{at}": value for at, one in enumerate(group) for name, value in one.items()}
            yield from write(_insert_many(table, len(group)), **values)


def _groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


# -- reading ------------------------------------------------------------------------------------------


def last_ledger_id() -> Steps[int]:
    """Return the last ledger id that was given."""
    found = yield from row(_LAST_ID)
    assert found is not None, "made with the schema"
    return int(found[0])


def shape_of(name: str) -> Steps[LedgerShape]:
    """Return what a managed ledger is apart from its entries and its window."""
    managed = yield from find(name)
    yield from end_of(managed)
    found = yield from row(_SHAPE, of_managed_id=managed.id)
    assert found is not None, "its end was found"
    sealed, first_id, trimmed_id, trimmed_entry = found
    ledgers = yield from rows(_LEDGERS, of_managed_id=managed.id)
    trimmed = None if trimmed_id is None else (Position(first_id, 0), Position(trimmed_id, trimmed_entry))
    return LedgerShape(tuple(LedgerSummary(*one) for one in ledgers), bool(sealed), trimmed)


def stored_entries(name: str, range_: EntryRange, limit: Limit) -> Steps[tuple[StoredEntry, ...]]:
    """Return the first entries of a range, with their times."""
    managed = yield from find(name)
    found: list[StoredEntry] = []
    left = limit.bytes
    for span in (yield from spans_of(managed, range_, limit.items)):
        places = {"first": place_of(span.ledger_id, span.first), "last": place_of(span.ledger_id, span.last)}
        fitting = yield from _fitting(places, limit.items - len(found), left, bool(found))
        through = yield from messages_through(span.ledger_id, span.first - 1)
        expected = span.first
        for place, after_it, appended_ms, data in (yield from rows(_STORED, **places, items=fitting)):
            if entry_id_of(place) != expected:
                break
            found.append(StoredEntry(Position(span.ledger_id, expected), data, after_it - through, appended_ms))
            through, expected, left = after_it, expected + 1, left - len(data)
        if expected < min(span.first + fitting, span.last + 1):
            raise CorruptEntry(Position(span.ledger_id, expected), "it is missing", name)
        if expected <= span.last or len(found) >= limit.items:
            break
    return tuple(found)


def _fitting(places: dict[str, int], items_max: int, bytes_max: int, is_begun: bool) -> Steps[int]:
    """Return how many of the first entries of these places fit; the first of an answer always does."""
    fitting = 0
    for (size,) in (yield from rows(_SIZES, **places, items=max(items_max, 1))):
        bytes_max -= size
        if bytes_max < 0 and (is_begun or fitting):
            return fitting
        fitting += 1
    # Without sizes the entries are missing; the read that follows finds that.
    return fitting or items_max


def sequences_of(name: str, after: RememberedSequence | None, items_max: int) -> Steps[tuple[RememberedSequence, ...]]:
    """Return the first copies in a window behind ``after``."""
    managed = yield from find(name)
    producer, last = ("", -1) if after is None else (after.sequence.producer, after.sequence.last)
    found = yield from rows(
        _COPIES, of_managed_id=managed.id, after_producer=producer, after_last=last, items=items_max
    )
    return tuple(map(_sequence, found))


def _sequence(found: Row) -> RememberedSequence:
    producer, first, last, ledger_id, entry_id, txn, branch, appended_ms = found
    return RememberedSequence(
        ProducerSequence(producer, first, last),
        Position(ledger_id, entry_id),
        None if txn is None else Branch(TxnID.parse(txn), branch),
        appended_ms,
    )


def scan_lines(range_: IndexRange, items_max: int) -> Steps[IndexPage]:
    """Return a page of an index."""
    bounds = {"index": range_.index, "start": range_.start, "stop": range_.stop, "items": items_max}
    if range_.after is None:
        found = yield from rows(_LINES, **bounds)
    else:
        after = {"after_path": range_.after.path, "after_partition": range_.after.partition or range_.after.path}
        found = yield from rows(_LINES_AFTER, **bounds, **after)
    lines = tuple(
        IndexReference(IndexEntry(range_.index, bytes(key)), key_of(path, partition)) for key, path, partition in found
    )
    if len(lines) < items_max:
        return IndexPage(lines)
    return IndexPage(lines, IndexRange(range_.index, lines[-1].entry.key, range_.stop, lines[-1].key))


# -- taking over --------------------------------------------------------------------------------------


def skip_ids(ledger_id: int, txn_numbers: dict[int, int]) -> Steps[None]:
    """Give no ledger id up to ``ledger_id``, and raise the highest transaction numbers."""
    _require_storable(ledger_id)
    yield from write(_SKIP_IDS, higher=ledger_id)
    for coordinator, number in sorted(txn_numbers.items()):
        yield from raise_transaction_number(coordinator, f"{number:028x}")


def import_ledger(name: str, shape: LedgerShape) -> Steps[Position]:
    """Create a managed ledger of a shape, or find it; return the last entry that was imported."""
    known = yield from find_id(name)
    if known is not None:
        return (yield from _imported(shape))
    first, last = shape.ledgers[0].ledger_id, shape.ledgers[-1].ledger_id
    _require_storable(last)
    taken = {found[0] for found in (yield from rows(_TAKEN_IDS, first=first, last=last))}
    if both := taken & {one.ledger_id for one in shape.ledgers}:
        raise InvalidInput(f"ledger {min(both)} of {name} has the id of another ledger of this store")
    before, trimmed = shape.before_open, shape.trimmed
    made = yield from row(
        _ADD_MANAGED,
        name=name,
        sealed=int(shape.sealed),
        first_ledger_id=trimmed[0].ledger_id if trimmed else first,
        open_ledger_id=last,
        last_ledger_id=before.ledger_id,
        last_entry_id=before.entry_id,
        trimmed_ledger_id=trimmed[1].ledger_id if trimmed else None,
        trimmed_entry_id=trimmed[1].entry_id if trimmed else None,
    )
    assert made is not None
    appended_ms, segments = 0, []
    for one in shape.ledgers:
        # The time of an open ledger never decreases; it has none while it is empty.
        appended_ms = max(appended_ms, one.appended_ms)
        totals = {"entries": one.entries, "bytes": one.bytes, "messages": one.messages, "appended_ms": appended_ms}
        segments.append({"ledger_id": one.ledger_id, "managed_id": made[0], "trimming": 0, **totals})
    yield from _write_many(ledger_segments, segments)
    return shape.whole.after


def import_entries(name: str, added: Sequence[StoredEntry]) -> Steps[None]:
    """Add entries directly behind those that were imported."""
    managed = yield from find(name)
    first = added[0].position
    around = {"of_managed_id": managed.id, "first": first.ledger_id, "last": added[-1].position.ledger_id}
    ledgers = (yield from rows(_LEDGER_BEFORE, of_managed_id=managed.id, first=first.ledger_id)) + (
        yield from rows(_LEDGERS_AMONG, **around)
    )
    sizes: dict[int, int] = dict(ledgers)
    at = yield from _last_position(list(sizes), first.ledger_id)
    through = yield from messages_through(at.ledger_id, at.entry_id)
    stored = []
    for entry in added:
        following = Position(at.ledger_id, at.entry_id + 1)
        if following.entry_id >= sizes.get(at.ledger_id, 0):
            following, through = Position(_next_filled(sizes, at.ledger_id), 0), 0
        if entry.position != following:
            raise InvalidInput(f"entry {entry.position} of {name} does not follow {at}")
        at = following
        through += entry.messages
        place = place_of(at.ledger_id, at.entry_id)
        columns = {"messages_through": through, "appended_ms": entry.appended_ms, "data": entry.data}
        stored.append({"place": place, **columns})
    yield from _write_many(entries, stored)


def _last_position(ledger_ids: list[int], ledger_id: int) -> Steps[Position]:
    """Return the last entry that is stored in one of these ledgers, or in the one before it."""
    before = [one for one in ledger_ids if one < ledger_id]
    last = yield from _last_in(ledger_id)
    if last < 0 and before:
        return Position(before[-1], (yield from _last_in(before[-1])))
    return Position(ledger_id, last)


def _next_filled(sizes: dict[int, int], ledger_id: int) -> int:
    """Return the next ledger with entries; 0, which no ledger has as its id, if there is none."""
    return next((one for one, size in sizes.items() if one > ledger_id and size), 0)


def import_sequences(name: str, added: Sequence[RememberedSequence]) -> Steps[None]:
    """Add copies to the window of a managed ledger, but for those that are there."""
    managed = yield from find(name)
    newest: dict[str, tuple[int, int]] = {}
    stored = []
    for one in added:
        sequence, branch = one.sequence, one.branch
        if sequence.producer not in newest:
            newest[sequence.producer] = yield from newest_copy(managed.id, sequence.producer)
        last, through = newest[sequence.producer]
        if sequence.last <= last:
            continue
        through += sequence.last - sequence.first + 1
        newest[sequence.producer] = (sequence.last, through)
        stored.append(
            {
                "managed_id": managed.id,
                "producer": sequence.producer,
                "last": sequence.last,
                "first": sequence.first,
                "ledger_id": one.position.ledger_id,
                "entry_id": one.position.entry_id,
                "txn": None if branch is None else str(branch.txn_id),
                "branch": None if branch is None else branch.number,
                "sequences_through": through,
                "appended_ms": one.appended_ms,
            }
        )
    yield from _write_many(producer_copies, stored)


def _imported(shape: LedgerShape) -> Steps[Position]:
    """Return the last entry that was imported: they are imported in order, so bisection finds it."""
    filled = [one for one in shape.ledgers if one.entries]
    low, high = 0, len(filled)
    while low < high:
        middle = (low + high) // 2
        if (yield from _last_in(filled[middle].ledger_id)) < 0:
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return shape.whole.after
    ledger_id = filled[low - 1].ledger_id
    return Position(ledger_id, (yield from _last_in(ledger_id)))


def _last_in(ledger_id: int) -> Steps[int]:
    """Return the last entry of a ledger that is stored; -1: there is none."""
    found = yield from row(_LAST_PLACE, first=place_of(ledger_id, 0), stop=place_of(ledger_id + 1, 0))
    return -1 if found is None or found[0] is None else entry_id_of(found[0])


def _require_storable(ledger_id: int) -> None:
    if ledger_id > LEDGER_ID_MAX:
        raise InvalidInput(f"ledger id {ledger_id} is above {LEDGER_ID_MAX}, the highest one of a SQL database")
