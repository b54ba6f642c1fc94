"""Steps on managed ledgers and their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Text, bindparam, func, insert, select, update

from txnframework.errors import LedgerNotFound
from txnframework.model import LedgerSummary, Position, Tail
from txnframework_sql.schema import highest_txn_numbers, ledger_segments, managed_ledgers
from txnframework_sql.steps.record_writes import next_number
from txnframework_sql.steps.statements import LedgerChange, Steps, changed, lock, row, rows, write

_MANAGED = managed_ledgers.c
_SEGMENT = ledger_segments.c
# After every name with a prefix: no text has a higher character.
_HIGHEST_CHARACTER = "\U0010ffff"

_FIND = select(_MANAGED.id).where(_MANAGED.name == bindparam("of_name"))
_ADD = (
    insert(managed_ledgers)
    .values(
        name=bindparam("name"),
        sealed=0,
        first_ledger_id=bindparam("ledger_id"),
        open_ledger_id=bindparam("ledger_id"),
        last_ledger_id=bindparam("ledger_id"),
        last_entry_id=-1,
    )
    .returning(_MANAGED.id)
)
_ADD_SEGMENT = insert(ledger_segments).values(
    ledger_id=bindparam("ledger_id"),
    managed_id=bindparam("managed_id"),
    trimming=0,
    entries=0,
    bytes=0,
    messages=0,
    appended_ms=bindparam("appended_ms"),
)
_END_COLUMNS = (
    _MANAGED.sealed,
    _MANAGED.open_ledger_id,
    _MANAGED.last_ledger_id,
    _MANAGED.last_entry_id,
    _SEGMENT.entries,
    _SEGMENT.bytes,
    _SEGMENT.messages,
    _SEGMENT.appended_ms,
)
_END = (
    select(*_END_COLUMNS)
    .select_from(managed_ledgers.join(ledger_segments, _SEGMENT.ledger_id == _MANAGED.open_ledger_id))
    .where(_MANAGED.id == bindparam("of_managed_id"), _MANAGED.name.is_not(None))
)
# The ids as a JSON array.
_ENDS = (
    select(_MANAGED.id, *_END_COLUMNS)
    .select_from(managed_ledgers.join(ledger_segments, _SEGMENT.ledger_id == _MANAGED.open_ledger_id))
    .where(
        _MANAGED.id.in_(select(func.json_each(bindparam("managed_ids", type_=Text)).table_valued("value").c.value)),
        _MANAGED.name.is_not(None),
    )
)
_LOCK = select(_MANAGED.id).where(_MANAGED.id == bindparam("of_managed_id")).with_for_update(key_share=True)
_SUMMARIES = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries, _SEGMENT.messages, _SEGMENT.bytes, _SEGMENT.appended_ms)
    .where(
        _SEGMENT.managed_id == bindparam("of_managed_id"),
        _SEGMENT.ledger_id > bindparam("after"),
        _SEGMENT.trimming == 0,
    )
    .order_by(_SEGMENT.ledger_id)
    .limit(bindparam("items"))
)
_ROLL = (
    update(managed_ledgers)
    .where(_MANAGED.id == bindparam("of_managed_id"))
    .values(
        open_ledger_id=bindparam("ledger_id"),
        last_ledger_id=bindparam("last_ledger_id"),
        last_entry_id=bindparam("last_entry_id"),
    )
)
_SEAL = update(managed_ledgers).where(_MANAGED.id == bindparam("of_managed_id")).values(sealed=1)
_FORGET_NAME = update(managed_ledgers).where(_MANAGED.id == bindparam("of_managed_id")).values(name=None)
_NAMES = (
    select(_MANAGED.name)
    .where(_MANAGED.name >= bindparam("prefix"), _MANAGED.name < bindparam("stop"), _MANAGED.name > bindparam("after"))
    .order_by(_MANAGED.name)
    .limit(bindparam("items"))
)
_HIGHEST = select(highest_txn_numbers.c.coordinator, func.max(highest_txn_numbers.c.number)).group_by(
    highest_txn_numbers.c.coordinator
)


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """A managed ledger, identified by the id that its name had when it was opened."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a managed ledger: its open ledger with totals, and the position of the entry before it."""

    is_sealed: bool
    ledger_id: int
    before: Position
    entries: int
    bytes: int
    messages: int
    appended_ms: int

    @property
    def last(self) -> Position:
        """The position of the last entry; without entries, the position before the first."""
        return Position(self.ledger_id, self.entries - 1) if self.entries else self.before

    @property
    def tail(self) -> Tail:
        """The end as a ledger reports it."""
        return Tail(self.last, self.ledger_id, self.is_sealed)


def create(name: str, now_ms: int) -> Steps[LedgerRef]:
    """Return the managed ledger of this name; create it if it does not exist."""
    found = yield from row(_FIND, of_name=name)
    if found is None:
        # Ledger ids are unique over all names, so no id returns when a name is created again.
        ledger_id = yield from next_number("ledger")
        found = yield from row(_ADD, name=name, ledger_id=ledger_id)
        assert found is not None
        yield from write(_ADD_SEGMENT, ledger_id=ledger_id, managed_id=found[0], appended_ms=now_ms)
    return LedgerRef(found[0], name)


def find_id(name: str) -> Steps[int | None]:
    """Return the id of the managed ledger of this name, or None."""
    found = yield from row(_FIND, of_name=name)
    return None if found is None else int(found[0])


def find(name: str) -> Steps[LedgerRef]:
    """Return the managed ledger of this name, or raise LedgerNotFound."""
    found = yield from row(_FIND, of_name=name)
    if found is None:
        raise LedgerNotFound(name)
    return LedgerRef(found[0], name)


def end_of(managed: LedgerRef) -> Steps[LedgerEnd]:
    """Return the end of a managed ledger; raise LedgerNotFound if it was deleted since it was opened."""
    found = yield from row(_END, of_managed_id=managed.id)
    if found is None:
        raise LedgerNotFound(managed.name)
    return _end_from(found)


def _end_from(found: Sequence[Any]) -> LedgerEnd:
    sealed, ledger_id, last_ledger_id, last_entry_id, entries, size, messages, appended_ms = found
    before = Position(last_ledger_id, last_entry_id)
    return LedgerEnd(bool(sealed), ledger_id, before, entries, size, messages, appended_ms)


def tail_of(managed: LedgerRef) -> Steps[Tail]:
    """Return last confirmed position, open ledger and sealed flag of a managed ledger."""
    return (yield from end_of(managed)).tail


def tails_of(ledgers: Sequence[LedgerRef]) -> Steps[list[Tail | Exception]]:
    """Return the tail of each managed ledger, or the error that it was deleted."""
    ends = yield from ends_of(ledgers)
    return [ends[managed.id].tail if managed.id in ends else LedgerNotFound(managed.name) for managed in ledgers]


def ends_of(ledgers: Iterable[LedgerRef]) -> Steps[dict[int, LedgerEnd]]:
    """Return the ends of those of the managed ledgers that exist, by their ids; only where writers are serialized."""
    ids = msgspec.json.encode(sorted({managed.id for managed in ledgers})).decode()
    return {managed_id: _end_from(end) for managed_id, *end in (yield from rows(_ENDS, managed_ids=ids))}


def locked_end_of(managed: LedgerRef) -> Steps[LedgerEnd]:
    """
    Return the end of a managed ledger, locked until the transaction ends.

    Positions, the open ledger, the seal and the deduplication window are decided under this lock.
    """
    yield from lock(_LOCK, of_managed_id=managed.id)
    return (yield from end_of(managed))


def end_state(managed_id: int) -> Steps[tuple[int, ...] | None]:
    """Return a value that differs after every change of a managed ledger's tail; None: it was deleted."""
    found = yield from row(_END, of_managed_id=managed_id)
    return None if found is None else tuple(found[:5])


def summaries(managed: LedgerRef, after: int, items_max: int) -> Steps[tuple[LedgerSummary, ...]]:
    """Return the first remaining ledgers after a ledger id."""
    yield from end_of(managed)
    found = yield from rows(_SUMMARIES, of_managed_id=managed.id, after=after, items=items_max)
    return tuple(LedgerSummary(*summary) for summary in found)


def roll(managed: LedgerRef) -> Steps[Tail]:
    """Close the open ledger and open the next, unless it is sealed or empty."""
    end = yield from locked_end_of(managed)
    if not end.is_sealed and end.entries:
        yield from open_next(managed, end.last, end.appended_ms)
    return (yield from tail_of(managed))


def open_next(managed: LedgerRef, last: Position, appended_ms: int) -> Steps[None]:
    """Open a new ledger after the entry ``last``, which was appended at ``appended_ms``."""
    ledger_id = yield from next_number("ledger")
    yield from write(_ADD_SEGMENT, ledger_id=ledger_id, managed_id=managed.id, appended_ms=appended_ms)
    yield from write(
        _ROLL,
        of_managed_id=managed.id,
        ledger_id=ledger_id,
        last_ledger_id=last.ledger_id,
        last_entry_id=last.entry_id,
    )
    yield from changed(LedgerChange(managed.id))


def seal(managed: LedgerRef) -> Steps[Tail]:
    """Refuse appends permanently."""
    end = yield from locked_end_of(managed)
    if not end.is_sealed:
        yield from write(_SEAL, of_managed_id=managed.id)
        yield from changed(LedgerChange(managed.id))
    return Tail(end.last, end.ledger_id, True)


def forget_name(name: str, upto_ledger_id: int | None) -> Steps[None]:
    """
    Delete the name of a managed ledger; its data is removed later, in steps.

    Nothing is changed if its open ledger has an id above ``upto_ledger_id``.
    """
    found = yield from row(_FIND, of_name=name)
    if found is None:
        return
    try:
        end = yield from locked_end_of(LedgerRef(found[0], name))
    except LedgerNotFound:
        # Another process has deleted it in between.
        return
    if upto_ledger_id is None or end.ledger_id <= upto_ledger_id:
        yield from write(_FORGET_NAME, of_managed_id=found[0])
        yield from changed(LedgerChange(found[0]))


def list_names(prefix: str, after: str, items_max: int) -> Steps[tuple[str, ...]]:
    """Return names that begin with ``prefix``, in order, after ``after``."""
    stop = prefix + _HIGHEST_CHARACTER
    found = yield from rows(_NAMES, prefix=prefix, stop=stop, after=after, items=items_max)
    return tuple(name for (name,) in found)


def highest_numbers() -> Steps[dict[int, int]]:
    """Return the highest transaction number appended, by coordinator."""
    return {coordinator: int(number, 16) for coordinator, number in (yield from rows(_HIGHEST))}
