"""Steps that append entries to managed ledgers, and the deduplication of their sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, bindparam, case, delete, func, insert, select, update

from txnframework.errors import LedgerClosed, LedgerSealed
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Branch,
    Position,
    ProducerSequence,
    Step,
    TxnID,
    WindowState,
)
from txnframework_sql._options import LedgerOptions
from txnframework_sql.schema import entries, highest_txn_numbers, ledger_segments, place_of, producer_copies
from txnframework_sql.steps.ledgers import LedgerEnd, LedgerRef, end_of, locked_end_of, open_next
from txnframework_sql.steps.record_writes import locked_version, put_next, require_version
from txnframework_sql.steps.statements import (
    LedgerChange,
    Row,
    Steps,
    changed,
    first_rows,
    row,
    write,
    write_many,
)

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
_ABOVE = select(
    func.max(_COPY.last),
    func.sum(
        case(
            (_COPY.last <= bindparam("of_sequence"), 0),
            (_COPY.first > bindparam("of_sequence"), _COPY.last - _COPY.first + 1),
            else_=_COPY.last - bindparam("of_sequence"),
        )
    ),
).where(*_OF_PRODUCER)
_OLD = producer_copies.alias("old")
_DROP_OLD = delete(producer_copies).where(
    *_OF_PRODUCER,
    _COPY.last.in_(
        select(_OLD.c.last)
        .where(_OLD.c.managed_id == bindparam("of_managed_id"), _OLD.c.producer == bindparam("of_producer"))
        .order_by(_OLD.c.last)
        .limit(bindparam("items"))
    ),
    _COPY.sequences_through <= bindparam("old_through"),
    _COPY.last != bindparam("of_last"),
)
_ADD_COPY = insert(producer_copies).values({column.name: bindparam(column.name) for column in _COPY})
_DROP_COPY = delete(producer_copies).where(*_OF_PRODUCER, _COPY.last == bindparam("of_last"))
_ADD_ENTRY = insert(entries).values({column.name: bindparam(column.name) for column in entries.c})
_GROW = (
    update(ledger_segments)
    .where(ledger_segments.c.ledger_id == bindparam("of_ledger_id"))
    .values({name: bindparam(name) for name in ("entries", "bytes", "messages", "appended_ms")})
)
_HIGHEST = highest_txn_numbers.c
_OF_COORDINATOR = and_(_HIGHEST.coordinator == bindparam("of_coordinator"), _HIGHEST.managed_id == 0)
_KNOWN = select(_HIGHEST.number).where(_OF_COORDINATOR)
_RAISE = (
    update(highest_txn_numbers)
    .where(_OF_COORDINATOR, _HIGHEST.number < bindparam("higher"))
    .values(number=bindparam("higher"))
)
_NOTE_FIRST = insert(highest_txn_numbers).values({column.name: bindparam(column.name) for column in _HIGHEST})

# Old copies of a producer are searched once per this many of its sequences.
_FORGET_EVERY = 64


@dataclass(frozen=True, slots=True)
class _Copy:
    first: int
    last: int
    position: Position
    branch: Branch | None
    sequences_through: int

    def appended(self, producer: str) -> Appended:
        """Return the copy as a ledger reports it."""
        return Appended(self.position, True, self.branch, ProducerSequence(producer, self.first, self.last))


@dataclass(slots=True)
class Totals:
    """The open ledger's totals while entries are added."""

    entries: int
    bytes: int
    messages: int
    appended_ms: int

    @classmethod
    def at(cls, end: LedgerEnd, now_ms: int) -> Totals:
        """Return the totals at the end of a ledger, with the time of the next entry."""
        # The time of an open ledger never decreases, so that it can be searched by time.
        return cls(end.entries, end.bytes, end.messages, max(now_ms, end.appended_ms))

    def add(self, entry: Append) -> None:
        """Count one more entry."""
        self.entries += 1
        self.bytes += len(entry.data)
        self.messages += entry.messages

    def row(self, ledger_id: int) -> dict[str, object]:
        """Return the parameters that store the totals."""
        return {
            "of_ledger_id": ledger_id,
            "entries": self.entries,
            "bytes": self.bytes,
            "messages": self.messages,
            "appended_ms": self.appended_ms,
        }


def append(
    managed: LedgerRef,
    appends: tuple[Append, ...],
    ledger_id: int | None,
    now_ms: int,
    options: LedgerOptions,
) -> Steps[tuple[Appended, ...]]:
    """Append every entry that is not stored already, or refuse all of them before the first change."""
    end = yield from locked_end_of(managed)
    if end.is_sealed:
        raise LedgerSealed(managed.name)
    if ledger_id is not None and ledger_id != end.ledger_id:
        raise LedgerClosed(managed.name, ledger_id)
    totals = Totals.at(end, now_ms)
    appended: list[Appended] = []
    for entry in appends:
        appended.append((yield from _append_one(managed, end, totals, entry, options)))
    if totals.entries == end.entries:
        return tuple(appended)
    yield from write(_GROW, **totals.row(end.ledger_id))
    yield from _note_transactions(entry.branch for entry in appends if entry.branch is not None)
    yield from changed(LedgerChange(managed.id))
    if is_full(totals.entries, totals.bytes, options):
        # In the same commit, so that a reader of the full ledger's last entry finds the next ledger open.
        yield from open_next(managed, Position(end.ledger_id, totals.entries - 1), totals.appended_ms)
    return tuple(appended)


def append_intended(managed: LedgerRef, step: Step, now_ms: int, options: LedgerOptions) -> Steps[Applied]:
    """Make a step with an intent; the header is locked before the ledger, as everywhere."""
    check, append_ = step.checks[0], step.appends[0]
    assert append_.intent is not None, "see require_valid"
    require_version(check.key, check.expected, (yield from locked_version(check.key)))
    put = append_.intent.put_at((yield from locked_end_of(managed)).tail)
    appended = yield from append(managed, append_.entries, None, now_ms, options)
    return Applied(((yield from put_next(put)),), (appended,))


def is_full(ledger_entries: int, ledger_bytes: int, options: LedgerOptions) -> bool:
    """Return whether a ledger of this size takes no more entries."""
    return ledger_entries >= options.ledger_entries_max or ledger_bytes >= options.ledger_bytes_max


def add_rows(
    entries: Sequence[dict[str, object]],
    copies: Sequence[dict[str, object]],
    totals: Sequence[dict[str, object]],
    branches: Iterable[Branch],
    old: Sequence[dict[str, object]],
) -> Steps[None]:
    """
    Write what appends of ``branches`` add, to any number of ledgers, with one execution of each statement.

    ``old``: what ``old_copies`` returned.
    """
    yield from write_many(_ADD_COPY, copies)
    yield from write_many(_DROP_OLD, old)
    yield from write_many(_ADD_ENTRY, entries)
    yield from write_many(_GROW, totals)
    yield from _note_transactions(branches)


def find_sequence(managed: LedgerRef, producer: str, sequence: int) -> Steps[Appended | None]:
    """Return the valid copy of a sequence, or None."""
    yield from end_of(managed)
    for copy in (yield from _overlapping(managed, ProducerSequence(producer, sequence, sequence))):
        return copy.appended(producer)
    return None


def remembered(managed: LedgerRef, producer: str, sequence: int, window: int) -> Steps[WindowState]:
    """Return what the ledger stores about a producer, and how many of its sequences are above the given one."""
    yield from end_of(managed)
    found = yield from row(_ABOVE, of_managed_id=managed.id, of_producer=producer, of_sequence=sequence)
    highest, above = (None, None) if found is None else found
    return WindowState(window, highest, int(above or 0))


def _append_one(
    managed: LedgerRef, end: LedgerEnd, totals: Totals, entry: Append, options: LedgerOptions
) -> Steps[Appended]:
    """Append one entry, or report its stored copy."""
    position = Position(end.ledger_id, totals.entries)
    sequence = entry.sequence
    if sequence is not None:
        found = yield from row(_NEWEST, of_managed_id=managed.id, of_producer=sequence.producer)
        newest = None if found is None else _copy(found)
        through = 0 if newest is None else newest.sequences_through
        if newest is not None and newest.last >= sequence.first:
            replaces = entry.replaces.entry if entry.replaces is not None else None
            copies = yield from _overlapping(managed, sequence)
            for copy in copies:
                if copy.position != replaces:
                    return copy.appended(sequence.producer)
            for copy in copies:
                yield from _drop(managed, sequence.producer, copy.last)
        yield from _add_copy(managed, entry, position, through, totals.appended_ms, options)
    totals.add(entry)
    yield from write(_ADD_ENTRY, **entry_row(position, totals, entry))
    return Appended(position)


def entry_row(position: Position, totals: Totals, entry: Append) -> dict[str, object]:
    """Return the parameters that store an entry; ``totals`` count it already."""
    return {
        "place": place_of(position.ledger_id, position.entry_id),
        "messages_through": totals.messages,
        "appended_ms": totals.appended_ms,
        "data": bytes(entry.data),
    }


def copy_row(
    managed: LedgerRef, entry: Append, position: Position, now_through: int, appended_ms: int
) -> dict[str, object]:
    """Return the parameters that store where the entry's sequences are."""
    sequence, branch = entry.sequence, entry.branch
    assert sequence is not None
    return {
        "managed_id": managed.id,
        "producer": sequence.producer,
        "last": sequence.last,
        "first": sequence.first,
        "ledger_id": position.ledger_id,
        "entry_id": position.entry_id,
        "txn": None if branch is None else str(branch.txn_id),
        "branch": None if branch is None else branch.number,
        "sequences_through": now_through,
        "appended_ms": appended_ms,
    }


def through_after(through: int, sequence: ProducerSequence) -> int:
    """Return the number of a producer's sequences after ``sequence``; ``through``: before it."""
    return through + sequence.last - sequence.first + 1


def old_copies(managed: LedgerRef, sequence: ProducerSequence, through: int, window: int) -> dict[str, object] | None:
    """
    Return the parameters that delete old copies of a producer after ``sequence`` was added; None: it is not yet time.

    Nothing is old before the window is full. Afterwards the time differs from ledger to ledger. So an append to many
    ledgers, whose producers usually count alike, deletes old copies in few of them.

    :param through: the number of the producer's sequences before this one.
    """
    now_through = through_after(through, sequence)
    if now_through <= window or (now_through + managed.id) // _FORGET_EVERY == (through + managed.id) // _FORGET_EVERY:
        return None
    return {
        "of_managed_id": managed.id,
        "of_producer": sequence.producer,
        # Twice as many as can have been added since, to catch up with copies that had to be kept before.
        "items": 2 * _FORGET_EVERY,
        "old_through": now_through - window,
        "of_last": sequence.last,
    }


def _add_copy(
    managed: LedgerRef,
    entry: Append,
    position: Position,
    through: int,
    appended_ms: int,
    options: LedgerOptions,
) -> Steps[None]:
    """Store where the entry's sequences are, and forget some old ones."""
    sequence = entry.sequence
    assert sequence is not None
    now_through = through_after(through, sequence)
    yield from write(_ADD_COPY, **copy_row(managed, entry, position, now_through, appended_ms))
    old = old_copies(managed, sequence, through, options.deduplication_window_sequences)
    if old is not None:
        yield from write(_DROP_OLD, **old)


def _drop(managed: LedgerRef, producer: str, last: int) -> Steps[None]:
    yield from write(_DROP_COPY, of_managed_id=managed.id, of_producer=producer, of_last=last)


def _overlapping(managed: LedgerRef, sequence: ProducerSequence) -> Steps[list[_Copy]]:
    """Return the copies that hold any of these sequences, in order."""
    # Copies of one producer do not overlap. So they have the same order by first and by last sequence, and the wanted
    # copies are adjacent.
    found = yield from first_rows(
        _FROM_SEQUENCE,
        lambda copy: copy[0] <= sequence.last,
        of_managed_id=managed.id,
        of_producer=sequence.producer,
        from_sequence=sequence.first,
    )
    return [_copy(copy) for copy in found]


def _copy(found: Row) -> _Copy:
    first, last, ledger_id, entry_id, txn, branch, through = found
    return _Copy(
        first,
        last,
        Position(ledger_id, entry_id),
        None if txn is None else Branch(TxnID.parse(txn), branch),
        through,
    )


def _note_transactions(branches: Iterable[Branch]) -> Steps[None]:
    """Store the highest transaction number of each coordinator."""
    highest: dict[int, int] = {}
    for branch in branches:
        txn_id = branch.txn_id
        highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
    for coordinator, number in sorted(highest.items()):
        yield from raise_transaction_number(coordinator, f"{number:028x}")


def raise_transaction_number(coordinator: int, digits: str) -> Steps[None]:
    """Store a transaction number, unless a higher one of the coordinator is stored; of no ledger in particular."""
    if (yield from write(_RAISE, of_coordinator=coordinator, higher=digits)):
        return
    if (yield from row(_KNOWN, of_coordinator=coordinator)) is None:
        yield from write(_NOTE_FIRST, coordinator=coordinator, number=digits, managed_id=0)


def newest_copy(managed_id: int, producer: str) -> Steps[tuple[int, int]]:
    """Return a producer's highest remembered sequence, -1 if there is none, and its number of sequences until then."""
    found = yield from row(_NEWEST, of_managed_id=managed_id, of_producer=producer)
    return (-1, 0) if found is None else (found[1], found[6])
