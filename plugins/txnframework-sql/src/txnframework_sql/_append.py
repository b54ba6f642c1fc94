"""Appending in the database: one step of a transaction on its thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from txnframework.errors import LedgerClosed, LedgerSealed
from txnframework.model import Append, Appended, Branch, Position, ProducerSequence, TxnID
from txnframework_sql._changes import LedgerChange
from txnframework_sql._database import Database, Row
from txnframework_sql._ledger_rows import End, Managed, end_of, open_next
from txnframework_sql._options import LedgerOptions
from txnframework_sql.schema import entries, highest_txn_numbers, ledger_segments, place_of, producer_copies

_COPY = producer_copies.c
_OF_PRODUCER = (_COPY.managed_id == bindparam("of_managed_id"), _COPY.producer == bindparam("of_producer"))
_FOUND = (
    _COPY.first,
    _COPY.last,
    _COPY.ledger_id,
    _COPY.entry_id,
    _COPY.txn,
    _COPY.branch,
    _COPY.sequences_through,
)
_NEWEST = select(*_FOUND).where(*_OF_PRODUCER).order_by(_COPY.last.desc()).limit(1)
_FROM_SEQUENCE = select(*_FOUND).where(*_OF_PRODUCER, _COPY.last >= bindparam("from_sequence")).order_by(_COPY.last)
_OLDEST = (
    select(_COPY.last, _COPY.sequences_through).where(*_OF_PRODUCER).order_by(_COPY.last).limit(bindparam("items"))
)
_ADD_COPY = insert(producer_copies).values({column.name: bindparam(column.name) for column in _COPY})
_DROP_COPY = delete(producer_copies).where(*_OF_PRODUCER, _COPY.last == bindparam("of_last"))
_ADD_ENTRY = insert(entries).values({column.name: bindparam(column.name) for column in entries.c})
_GROW = (
    update(ledger_segments)
    .where(ledger_segments.c.ledger_id == bindparam("of_ledger_id"))
    .values({name: bindparam(name) for name in ("entries", "bytes", "messages", "appended_ms")})
)
_NOTE = upsert(highest_txn_numbers).values(coordinator=bindparam("coordinator"), number=bindparam("number"))
_NOTE = _NOTE.on_conflict_do_update(
    index_elements=[highest_txn_numbers.c.coordinator],
    set_={"number": _NOTE.excluded.number},
    where=_NOTE.excluded.number > highest_txn_numbers.c.number,
)

# Old copies of a producer are looked for once in so many of its sequences.
_FORGET_EVERY = 64


@dataclass(frozen=True, slots=True)
class _Copy:
    first: int
    last: int
    position: Position
    branch: Branch | None
    sequences_through: int

    def appended(self, producer: str) -> Appended:
        """Return what a ledger reports of it."""
        return Appended(self.position, True, self.branch, ProducerSequence(producer, self.first, self.last))


@dataclass(slots=True)
class _Totals:
    """The open ledger's totals while entries are added."""

    entries: int
    bytes: int
    messages: int
    appended_ms: int


def append(
    database: Database,
    managed: Managed,
    appends: tuple[Append, ...],
    ledger_id: int | None,
    now_ms: int,
    options: LedgerOptions,
) -> tuple[Appended, ...]:
    """Append every entry that does not stand there already, or refuse all of them before the first change."""
    end = end_of(database, managed)
    if end.is_sealed:
        raise LedgerSealed(managed.name)
    if ledger_id is not None and ledger_id != end.ledger_id:
        raise LedgerClosed(managed.name, ledger_id)
    # The clock of an open ledger never goes back, so that it can be searched by time.
    totals = _Totals(end.entries, end.bytes, end.messages, max(now_ms, end.appended_ms))
    appended = tuple(_append_one(database, managed, end, totals, entry, options) for entry in appends)
    if totals.entries == end.entries:
        return appended
    database.write(
        _GROW,
        of_ledger_id=end.ledger_id,
        entries=totals.entries,
        bytes=totals.bytes,
        messages=totals.messages,
        appended_ms=totals.appended_ms,
    )
    _note_transactions(database, (entry.branch for entry in appends if entry.branch is not None))
    database.changes.append(LedgerChange(managed.id))
    if totals.entries >= options.ledger_entries_max or totals.bytes >= options.ledger_bytes_max:
        # In the same commit, so that whoever learns of the full ledger's last entry finds the next one open.
        open_next(database, managed, Position(end.ledger_id, totals.entries - 1), totals.appended_ms)
    return appended


def find_sequence(database: Database, managed: Managed, producer: str, sequence: int) -> Appended | None:
    """Return the copy of a sequence that counts, or None."""
    end_of(database, managed)
    for copy in _overlapping(database, managed, ProducerSequence(producer, sequence, sequence)):
        return copy.appended(producer)
    return None


def _append_one(
    database: Database, managed: Managed, end: End, totals: _Totals, entry: Append, options: LedgerOptions
) -> Appended:
    """Append one entry, or report the copy that stands there."""
    position = Position(end.ledger_id, totals.entries)
    sequence = entry.sequence
    if sequence is not None:
        newest = _copy(database.row(_NEWEST, of_managed_id=managed.id, of_producer=sequence.producer))
        through = 0 if newest is None else newest.sequences_through
        if newest is not None and newest.last >= sequence.first:
            replaces = entry.replaces.entry if entry.replaces is not None else None
            copies = _overlapping(database, managed, sequence)
            for copy in copies:
                if copy.position != replaces:
                    return copy.appended(sequence.producer)
            for copy in copies:
                _drop(database, managed, sequence.producer, copy.last)
        _add_copy(database, managed, entry, position, through, totals.appended_ms, options)
    totals.entries += 1
    totals.bytes += len(entry.data)
    totals.messages += entry.messages
    database.write(
        _ADD_ENTRY,
        place=place_of(position.ledger_id, position.entry_id),
        messages_through=totals.messages,
        appended_ms=totals.appended_ms,
        data=bytes(entry.data),
    )
    return Appended(position)


def _add_copy(
    database: Database,
    managed: Managed,
    entry: Append,
    position: Position,
    through: int,
    appended_ms: int,
    options: LedgerOptions,
) -> None:
    """Remember where the entry's sequences stand, and forget some that are old enough."""
    sequence, branch = entry.sequence, entry.branch
    assert sequence is not None
    now_through = through + sequence.last - sequence.first + 1
    database.write(
        _ADD_COPY,
        managed_id=managed.id,
        producer=sequence.producer,
        last=sequence.last,
        first=sequence.first,
        ledger_id=position.ledger_id,
        entry_id=position.entry_id,
        txn=None if branch is None else str(branch.txn_id),
        branch=None if branch is None else branch.number,
        sequences_through=now_through,
        appended_ms=appended_ms,
    )
    if now_through // _FORGET_EVERY == through // _FORGET_EVERY:
        return
    # Twice as many as can have come since, so that what had to stay before is caught up with.
    oldest = database.rows(_OLDEST, of_managed_id=managed.id, of_producer=sequence.producer, items=2 * _FORGET_EVERY)
    for last, copy_through in oldest:
        if copy_through <= now_through - options.deduplication_window and last != sequence.last:
            _drop(database, managed, sequence.producer, last)


def _drop(database: Database, managed: Managed, producer: str, last: int) -> None:
    database.write(_DROP_COPY, of_managed_id=managed.id, of_producer=producer, of_last=last)


def _overlapping(database: Database, managed: Managed, sequence: ProducerSequence) -> list[_Copy]:
    """Return the copies that hold any of these sequences, in order."""
    # Copies of one producer do not overlap, so they are ordered by their first sequence as they are by their last,
    # and those that are looked for stand side by side.
    found: list[_Copy] = []
    rows = database.stream(
        _FROM_SEQUENCE, of_managed_id=managed.id, of_producer=sequence.producer, from_sequence=sequence.first
    )
    for row in rows:
        copy = _copy(row)
        if copy is None or copy.first > sequence.last:
            break
        found.append(copy)
    rows.close()
    return found


def _copy(row: Row | None) -> _Copy | None:
    if row is None:
        return None
    first, last, ledger_id, entry_id, txn, branch, through = row
    return _Copy(
        first,
        last,
        Position(ledger_id, entry_id),
        None if txn is None else Branch(TxnID.parse(txn), branch),
        through,
    )


def _note_transactions(database: Database, branches: Iterable[Branch]) -> None:
    """Remember the highest transaction number of each coordinator."""
    highest: dict[int, int] = {}
    for branch in branches:
        txn_id = branch.txn_id
        highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
    for coordinator, number in highest.items():
        database.write(_NOTE, coordinator=coordinator, number=f"{number:028x}")
