"""Steps that remove entries in small amounts, so that no writer waits long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, func, select, tuple_, update

from txnframework.model import Branch, Position, TxnID
from txnframework_sql.schema import (
    entries,
    highest_txn_numbers,
    ledger_segments,
    managed_ledgers,
    place_of,
    producer_copies,
)
from txnframework_sql.steps.appends import raise_transaction_number
from txnframework_sql.steps.ledgers import LedgerRef, end_of, locked_end_of
from txnframework_sql.steps.statements import LedgerChange, Steps, changed, row, rows, write

STEP = 1_000
"""The maximum number of rows that one step removes."""

_MANAGED = managed_ledgers.c
_SEGMENT = ledger_segments.c
_COPY = producer_copies.c

_OLDEST = (
    select(_SEGMENT.ledger_id, _SEGMENT.entries)
    .where(_SEGMENT.managed_id == bindparam("of_managed_id"), _SEGMENT.trimming == bindparam("is_trimming"))
    .order_by(_SEGMENT.ledger_id)
    .limit(1)
)
_HIDE = update(ledger_segments).where(_SEGMENT.ledger_id == bindparam("of_ledger_id")).values(trimming=1)
_HIDE_ALL = (
    update(ledger_segments)
    .where(_SEGMENT.managed_id == bindparam("of_managed_id"), _SEGMENT.trimming == 0)
    .values(trimming=1)
)
_NOTE_TRIMMED = (
    update(managed_ledgers)
    .where(_MANAGED.id == bindparam("of_managed_id"))
    .values(trimmed_ledger_id=bindparam("ledger_id"), trimmed_entry_id=bindparam("entry_id"))
)
_FORGET_SEGMENT = delete(ledger_segments).where(_SEGMENT.ledger_id == bindparam("of_ledger_id"))
_FIRST_PLACE = select(func.min(entries.c.place)).where(
    entries.c.place >= bindparam("first"), entries.c.place < bindparam("stop")
)
_REMOVE = delete(entries).where(entries.c.place >= bindparam("first"), entries.c.place < bindparam("stop"))

_DELETED = select(_MANAGED.id).where(_MANAGED.name.is_(None)).limit(1).with_for_update()
_FORGET_MANAGED = delete(managed_ledgers).where(_MANAGED.id == bindparam("of_managed_id"))
_NUMBERS = (
    select(highest_txn_numbers.c.coordinator, highest_txn_numbers.c.number)
    .where(highest_txn_numbers.c.managed_id == bindparam("of_managed_id"))
    .order_by(highest_txn_numbers.c.coordinator)
)
_FORGET_NUMBERS = delete(highest_txn_numbers).where(highest_txn_numbers.c.managed_id == bindparam("of_managed_id"))
_FIRST_PRODUCERS = (
    select(_COPY.producer, func.max(_COPY.appended_ms))
    .where(_COPY.managed_id == bindparam("of_managed_id"), _COPY.producer > bindparam("after"))
    .group_by(_COPY.producer)
    .order_by(_COPY.producer)
    .limit(bindparam("items"))
)
_LAST_COPIES = (
    select(_COPY.last)
    .where(_COPY.managed_id == bindparam("of_managed_id"), _COPY.producer == bindparam("of_producer"))
    .order_by(_COPY.last)
    .limit(bindparam("items"))
)
_REMOVE_COPIES = delete(producer_copies).where(
    _COPY.managed_id == bindparam("of_managed_id"),
    _COPY.producer == bindparam("of_producer"),
    _COPY.last <= bindparam("upto"),
)
_COPIES_AFTER = (
    select(_COPY.producer, _COPY.last, _COPY.ledger_id, _COPY.entry_id, _COPY.txn, _COPY.branch)
    .where(
        _COPY.managed_id == bindparam("of_managed_id"),
        tuple_(_COPY.producer, _COPY.last) > tuple_(bindparam("after_producer"), bindparam("after_last")),
    )
    .order_by(_COPY.producer, _COPY.last)
    .limit(bindparam("items"))
)
# Only the copy that was read: another one may have replaced it under the same sequence in the meantime.
_ONE_COPY = (
    _COPY.managed_id == bindparam("of_managed_id"),
    _COPY.producer == bindparam("of_producer"),
    _COPY.last == bindparam("of_last"),
    _COPY.ledger_id == bindparam("of_ledger_id"),
    _COPY.entry_id == bindparam("of_entry_id"),
)
_FORGET_COPY = delete(producer_copies).where(*_ONE_COPY)
_COUNT_COPY = update(producer_copies).where(*_ONE_COPY).values(txn=None, branch=None)


@dataclass(frozen=True, slots=True)
class CopyPage:
    """A position in the copies of a managed ledger, which are processed in pages."""

    producer: str
    last: int


FIRST_COPIES = CopyPage("", -1)


@dataclass(frozen=True, slots=True)
class UnsettledCopy:
    """A copy that a branch appended to a ledger that is about to be trimmed."""

    producer: str
    last: int
    position: Position
    branch: Branch


def first_ledger(managed: LedgerRef) -> Steps[int]:
    """Return the first remaining ledger."""
    end = yield from end_of(managed)
    found = yield from row(_OLDEST, of_managed_id=managed.id, is_trimming=0)
    return end.ledger_id if found is None else int(found[0])


def unsettled_copies(
    managed: LedgerRef, page: CopyPage, below: int
) -> Steps[tuple[list[UnsettledCopy], CopyPage | None]]:
    """
    Return a page's copies that have a branch and are stored in ledgers below ``below``; and the next page, if any.
    """
    found = yield from rows(
        _COPIES_AFTER, of_managed_id=managed.id, after_producer=page.producer, after_last=page.last, items=STEP
    )
    copies = [
        UnsettledCopy(producer, last, Position(ledger_id, entry_id), Branch(TxnID.parse(txn), branch))
        for producer, last, ledger_id, entry_id, txn, branch in found
        if txn is not None and ledger_id < below
    ]
    return copies, CopyPage(found[-1][0], found[-1][1]) if len(found) == STEP else None


def settle_copies(managed: LedgerRef, copies: Iterable[UnsettledCopy], aborted: frozenset[Branch]) -> Steps[None]:
    """Delete copies of aborted branches; mark the others as valid."""
    yield from locked_end_of(managed)
    for copy in copies:
        yield from write(
            _FORGET_COPY if copy.branch in aborted else _COUNT_COPY,
            of_managed_id=managed.id,
            of_producer=copy.producer,
            of_last=copy.last,
            of_ledger_id=copy.position.ledger_id,
            of_entry_id=copy.position.entry_id,
        )


def hide_oldest(managed: LedgerRef, below: int) -> Steps[int]:
    """Hide the oldest ledger if it is closed and below ``below``; return the number of its entries."""
    end = yield from locked_end_of(managed)
    found = yield from row(_OLDEST, of_managed_id=managed.id, is_trimming=0)
    if found is None or found[0] >= below or found[0] == end.ledger_id:
        return 0
    ledger_id, size = found
    # From this commit on its entries are invisible. After a crash before they are removed, the next trim removes them.
    yield from write(_HIDE, of_ledger_id=ledger_id)
    yield from write(_NOTE_TRIMMED, of_managed_id=managed.id, ledger_id=ledger_id, entry_id=size - 1)
    yield from changed(LedgerChange(managed.id))
    return int(size)


def remove_hidden(managed_id: int) -> Steps[bool]:
    """Remove some entries of a hidden ledger; return whether more remain."""
    found = yield from row(_OLDEST, of_managed_id=managed_id, is_trimming=1)
    if found is None:
        return False
    stop = place_of(found[0] + 1, 0)
    first = yield from row(_FIRST_PLACE, first=place_of(found[0], 0), stop=stop)
    if first is None or first[0] is None:
        yield from write(_FORGET_SEGMENT, of_ledger_id=found[0])
    else:
        yield from write(_REMOVE, first=first[0], stop=min(first[0] + STEP, stop))
    return True


def forget_idle_producers(managed: LedgerRef, after: str, silent_since_ms: int, producers_max: int) -> Steps[str]:
    """
    Delete producers that have been idle for long, among the first ones after ``after``.

    Return the name to continue after, empty at the end. Without this, producers that write once, such as one attempt of
    a task, would be stored forever.
    """
    yield from locked_end_of(managed)
    found = yield from rows(_FIRST_PRODUCERS, of_managed_id=managed.id, after=after, items=producers_max)
    for producer, appended_ms in found:
        if appended_ms < silent_since_ms:
            yield from _remove_copies(managed.id, producer)
    return str(found[-1][0]) if len(found) == producers_max else ""


def remove_deleted() -> Steps[bool]:
    """Remove some data of a deleted managed ledger; return whether more remains."""
    found = yield from row(_DELETED)
    if found is None:
        return False
    managed_id = found[0]
    yield from write(_HIDE_ALL, of_managed_id=managed_id)
    if (yield from remove_hidden(managed_id)):
        return True
    producer = yield from row(_FIRST_PRODUCERS, of_managed_id=managed_id, after="", items=1)
    if producer is not None:
        yield from _remove_copies(managed_id, producer[0])
    else:
        # Transaction numbers are never used again, also not those that only this ledger had.
        for coordinator, digits in (yield from rows(_NUMBERS, of_managed_id=managed_id)):
            yield from raise_transaction_number(coordinator, digits)
        yield from write(_FORGET_NUMBERS, of_managed_id=managed_id)
        yield from write(_FORGET_MANAGED, of_managed_id=managed_id)
    return True


def _remove_copies(managed_id: int, producer: str) -> Steps[None]:
    oldest = yield from rows(_LAST_COPIES, of_managed_id=managed_id, of_producer=producer, items=STEP)
    yield from write(_REMOVE_COPIES, of_managed_id=managed_id, of_producer=producer, upto=oldest[-1][0])
