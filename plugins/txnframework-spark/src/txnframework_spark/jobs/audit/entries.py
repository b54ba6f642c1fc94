"""A task's part of an audit: it reads pieces of ledgers, and returns a row for each entry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from txnframework.broker import Host
from txnframework.errors import Corrupt, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import IManagedLedger, IPlannableBuffer
from txnframework.model.compacted import split_compacted
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework_spark import process
from txnframework_spark.jobs.audit.deployment import Piece
from txnframework_spark.jobs.session import Meter
from txnframework_spark.options.parser import StoreOptions

Batches: TypeAlias = Iterator[pa.RecordBatch]
Row: TypeAlias = dict[str, Any]

ENTRIES: Final = (
    "name string, ledger bigint, entry bigint, bytes bigint, messages bigint, hash string, txn string, branch string,"
    " visible boolean, copy_of string, original_ledger bigint, original_entry bigint, original_hash string,"
    " damage string, gone boolean"
)
"""
The columns of the rows. ``visible``: whether readers see an entry; null if that is not decided, or not known.
``copy_of`` and ``original_...``, of a compacted entry: the segment and the entry that it is a copy of. ``damage``: what
is wrong with the entry itself. ``gone``: the piece cannot be read any more, because it was trimmed, deleted or
compacted again; such a row is about no entry.
"""
_TYPES: Final = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in (one.split() for one in ENTRIES.split(","))])
_PAGE: Final = Limit(1_000)
_ONE: Final = Limit(1)
_ROWS_AT_A_TIME: Final = 5_000


def reading(stores: StoreOptions, pieces: Sequence[Piece], meter: Meter) -> Callable[[Batches], Batches]:
    """Return a function that reads the pieces with the numbers that a task gets."""
    messages, size = meter.messages, meter.bytes

    def batch_of(rows: list[Row]) -> pa.RecordBatch:
        messages.add(sum(row.get("messages", 0) for row in rows))
        size.add(sum(row.get("bytes", 0) for row in rows))
        return pa.RecordBatch.from_pylist(rows, _SCHEMA)

    def read(numbers: Batches) -> Batches:
        host = process.host(stores)
        for batch in numbers:
            rows: list[Row] = []
            for number in batch.column(0).to_pylist():
                for row in read_piece(host, pieces[number]):
                    rows.append(row)
                    if len(rows) == _ROWS_AT_A_TIME:
                        yield batch_of(rows)
                        rows = []
            yield batch_of(rows)

    return read


def read_piece(host: Host, piece: Piece) -> Iterator[Row]:
    """Yield the rows of a piece."""
    try:
        if piece.is_segment:
            with process.enter_context(host.segments.visit(piece.name, may_have_lost_end=True)) as opened:
                aborted = process.run(_aborted(opened.buffer, piece))
                yield from _read(opened.ledger, piece, aborted)
            return
        ledger = process.run(host.ledgers.open(piece.name))
        try:
            yield from _read(ledger, piece, None)
        finally:
            process.run(ledger.close())
    except (EntryTrimmed, LedgerNotFound):
        yield _row(piece, gone=True)


async def _aborted(buffer: Any, piece: Piece) -> frozenset[Branch] | None:
    """Return the branches in a piece that do not count; None: that is not known."""
    if piece.readable is None or not IPlannableBuffer.providedBy(buffer):
        return None
    end = min(piece.upto, piece.readable)
    if end <= piece.after:
        return frozenset()
    found: frozenset[Branch] = (await buffer.plan(piece.after, end)).aborted
    return found


def _read(ledger: IManagedLedger, piece: Piece, aborted: frozenset[Branch] | None) -> Iterator[Row]:
    after, limit = piece.after, _PAGE
    while after < piece.upto:
        try:
            page: tuple[LedgerEntry, ...] = process.run(ledger.read(EntryRange(after, piece.upto), limit))
        except Corrupt as error:
            # Not every store says which entry it is, so those of this page are read one by one.
            if limit is _ONE:
                after = Position(after.ledger_id, after.entry_id + 1)
                yield _row(piece, entry=after.entry_id, damage=str(error))
            limit = _ONE
            continue
        if not page:
            break
        for entry in page:
            yield row_of(piece, entry, aborted)
        after = page[-1].position


def row_of(piece: Piece, entry: LedgerEntry, aborted: frozenset[Branch] | None) -> Row:
    """Return the row of an entry; ``aborted``: the branches in the piece that do not count, if that is known."""
    row = _row(piece, entry=entry.position.entry_id, bytes=len(entry.data), hash=_hash(entry.data))
    try:
        if piece.copy_of:
            copy = split_compacted(entry.data, entry.position, piece.name)
            EntryView(copy.data, entry.position, piece.name)  # checks it
            row["messages"] = len(copy.indexes)
            row["original_ledger"], row["original_entry"] = copy.position.ledger_id, copy.position.entry_id
            row["original_hash"] = _hash(copy.data) if copy.is_whole else None
        elif piece.is_segment:
            view = EntryView(entry.data, entry.position, piece.name)
            row["messages"] = view.count
            if view.branch is not None:
                row["txn"], row["branch"] = str(view.branch.txn_id), str(view.branch.number)
            if aborted is not None and piece.readable is not None and entry.position <= piece.readable:
                row["visible"] = view.branch is None or view.branch not in aborted
    except Corrupt as error:
        row["damage"] = str(error)
    return row


def _row(piece: Piece, **values: Any) -> Row:
    return {"name": piece.name, "ledger": piece.ledger_id, "copy_of": piece.copy_of or None, "gone": False, **values}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
