"""A task's part of an audit: it reads pieces of ledgers, and returns counts, hashes, branches and damages as rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from txnframework.broker import HashSum, Host
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

READ: Final = "read"
"""A piece that was read: its counts and its hash."""
GONE: Final = "gone"
"""A piece that could not be read any more, because it was trimmed, deleted or compacted again."""
BRANCH: Final = "branch"
"""A branch of a transaction in a piece."""
ENTRY: Final = "entry"
"""An entry of a compacted segment."""
COPY: Final = "copy"
"""An entry of a compacted ledger, by the position of its original."""
FOUND: Final = "found"
"""A damage."""

FOUND_ROWS: Final = (
    "kind string, piece int, name string, ledger bigint, entry bigint, txn string, branch string, visible boolean,"
    " entries bigint, messages bigint, bytes bigint, hash string, aborted bigint, undecided bigint, first_ms bigint,"
    " last_ms bigint, check string, detail string"
)
_TYPES: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in (one.split() for one in FOUND_ROWS.split(","))])
_PAGE: Final = Limit(1_000)
_ONE: Final = Limit(1)
_ROWS_AT_A_TIME: Final = 5_000


def auditing(stores: StoreOptions, pieces: Sequence[Piece], meter: Meter) -> Callable[[Batches], Batches]:
    """Return a function that reads the pieces with the numbers that a task gets."""
    messages, size = meter.messages, meter.bytes

    def audit(numbers: Batches) -> Batches:
        host = process.host(stores)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                rows: list[Row] = []
                for row in read_piece(host, pieces[number]):
                    rows.append(row | {"piece": number})
                    if row["kind"] == READ:
                        messages.add(row["messages"])
                        size.add(row["bytes"])
                    if len(rows) == _ROWS_AT_A_TIME:
                        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)
                        rows = []
                yield pa.RecordBatch.from_pylist(rows, _SCHEMA)

    return audit


def read_piece(host: Host, piece: Piece) -> Iterator[Row]:
    """Yield the rows of a piece."""
    tally = Tally(piece)
    try:
        if piece.is_segment:
            with process.enter_context(host.segments.visit(piece.name, may_have_lost_end=True)) as opened:
                aborted = process.run(_aborted(opened.buffer, piece))
                yield from _read(opened.ledger, tally, aborted)
            return
        ledger = process.run(host.ledgers.open(piece.name))
        try:
            yield from _read(ledger, tally, None)
        finally:
            process.run(ledger.close())
    except (EntryTrimmed, LedgerNotFound) as error:
        yield tally.row(GONE, detail=str(error))


async def _aborted(buffer: Any, piece: Piece) -> frozenset[Branch] | None:
    """Return the branches in a piece that do not count; None: that is not known."""
    if piece.readable is None or not IPlannableBuffer.providedBy(buffer):
        return None
    end = min(piece.upto, piece.readable)
    if end <= piece.after:
        return frozenset()
    found: frozenset[Branch] = (await buffer.plan(piece.after, end)).aborted
    return found


def _read(ledger: IManagedLedger, tally: Tally, aborted: frozenset[Branch] | None) -> Iterator[Row]:
    piece = tally.piece
    after, limit = piece.after, _PAGE
    while after < piece.upto:
        try:
            page: tuple[LedgerEntry, ...] = process.run(ledger.read(EntryRange(after, piece.upto), limit))
        except Corrupt as error:
            # Not every store says which entry it is, so those of this page are read one by one.
            if limit is _ONE:
                after = Position(after.ledger_id, after.entry_id + 1)
                yield from tally.damaged(after, error)
            limit = _ONE
            continue
        if not page:
            break
        for entry in page:
            yield from tally.add(entry, aborted)
        after = page[-1].position
    yield from tally.finish()


@dataclass(slots=True)
class _Counts:
    entries: int = 0
    messages: int = 0


@dataclass(slots=True)
class Tally:
    """What was found in a piece so far."""

    piece: Piece
    hashed: HashSum = field(default_factory=HashSum)
    expected: int = -1
    messages: int = 0
    bytes: int = 0
    aborted: int = 0
    undecided: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    branches: dict[tuple[Branch, bool | None], _Counts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = self.piece.first

    def row(self, kind: str, **facts: Any) -> Row:
        """Return a row about the piece."""
        return {"kind": kind, "name": self.piece.name, "ledger": self.piece.ledger_id, **facts}

    def damaged(self, position: Position, error: Corrupt) -> Iterator[Row]:
        """Yield the damage at a position, and what is missing before it."""
        yield from self._missing(position.entry_id)
        yield self.row(FOUND, check="damaged-entry", entry=position.entry_id, detail=str(error))
        self.expected = position.entry_id + 1

    def add(self, entry: LedgerEntry, aborted: frozenset[Branch] | None) -> Iterator[Row]:
        """Add an entry, and yield its rows."""
        position = entry.position
        yield from self._missing(position.entry_id)
        self.expected = position.entry_id + 1
        self.bytes += len(entry.data)
        self.hashed.add(position.ledger_id, position.entry_id, entry.data)
        try:
            if self.piece.copy_of:
                yield from self._copy(entry)
            elif self.piece.is_segment:
                yield from self._entry(entry, aborted)
        except Corrupt as error:
            yield self.row(FOUND, check="damaged-entry", entry=position.entry_id, detail=str(error))

    def _entry(self, entry: LedgerEntry, aborted: frozenset[Branch] | None) -> Iterator[Row]:
        position, view = entry.position, EntryView(entry.data, entry.position, self.piece.name)
        visible = self._visible(view.branch, position, aborted)
        self.messages += view.count
        self.aborted += view.count * (visible is False)
        self.undecided += view.count * (visible is None)
        first, last = view.published_ms[0], view.published_ms[view.count - 1]
        self.first_ms = first if self.first_ms is None else min(first, self.first_ms)
        self.last_ms = last if self.last_ms is None else max(last, self.last_ms)
        if view.branch is not None:
            counts = self.branches.setdefault((view.branch, visible), _Counts())
            counts.entries += 1
            counts.messages += view.count
        if self.piece.copied is not None and position <= self.piece.copied:
            yield self.row(ENTRY, entry=position.entry_id, visible=visible, hash=hashlib.sha256(entry.data).hexdigest())

    def _visible(self, branch: Branch | None, position: Position, aborted: frozenset[Branch] | None) -> bool | None:
        """Return whether readers see an entry; None: it is not decided yet, or not known."""
        if aborted is None or self.piece.readable is None or position > self.piece.readable:
            return None
        return branch is None or branch not in aborted

    def _copy(self, entry: LedgerEntry) -> Iterator[Row]:
        copy = split_compacted(entry.data, entry.position, self.piece.name)
        EntryView(copy.data, entry.position, self.piece.name)  # checks it
        self.messages += len(copy.indexes)
        yield {
            "kind": COPY,
            "name": self.piece.copy_of,
            "ledger": copy.position.ledger_id,
            "entry": copy.position.entry_id,
            "hash": hashlib.sha256(copy.data).hexdigest() if copy.is_whole else None,
            "detail": f"{entry.position} of {self.piece.name}",
        }

    def finish(self) -> Iterator[Row]:
        """Yield the rows of the whole piece."""
        yield from self._missing(self.piece.last + 1)
        for (branch, visible), counts in self.branches.items():
            yield self.row(
                BRANCH,
                txn=str(branch.txn_id),
                branch=str(branch.number),
                visible=visible,
                entries=counts.entries,
                messages=counts.messages,
            )
        yield self.row(
            READ,
            entries=self.hashed.count,
            messages=self.messages,
            bytes=self.bytes,
            hash=self.hashed.digest.hash,
            aborted=self.aborted,
            undecided=self.undecided,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
        )

    def _missing(self, upto: int) -> Iterator[Row]:
        """Yield the entries that are missing before an entry."""
        if self.expected < upto:
            what = "the entry is" if upto - self.expected == 1 else f"entries {self.expected} to {upto - 1} are"
            yield self.row(FOUND, check="missing-entry", entry=self.expected, detail=f"{what} missing")
