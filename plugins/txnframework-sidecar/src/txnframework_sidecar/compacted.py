"""
The compacted ledgers of a topic: their format, and lookup of a marker's messages in them.

Each attempt to compact, a run, has a ledger of its own in the managed ledger, and a token in each of its entries. Its
first entry claims the ledger. The next ones hold the rewritten messages. The last entry stores the last position of the
run, and the remaining earlier runs. A run without this entry does not count. Each is a plain entry of a log that begins
with ``[format 2 bytes][kind 1 byte][token 8 bytes][ledger 8 bytes][entry 8 bytes]``, big-endian; an unknown format is
refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound, UnknownFormat
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, LedgerEntry, LedgerSummary, Limit, Position
from txnframework_legacy.log.format import decode_entry, encode_plain

FORMAT = 1
TOKEN_BITS = 63
_HEADER = struct.Struct(">HBQqq")


class EntryKind(Enum):
    """
    The kind of an entry: the claim with the start position, the messages of a marker, or the end with the last
    position.
    """

    CLAIM = 0
    MESSAGES = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class CompactedEntry:
    """One entry of a run; ``position`` is a position in the topic."""

    kind: EntryKind
    token: int
    position: Position
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One finished run: the markers after ``after`` up to ``upto``, in entries 1 to ``last`` of its ledger."""

    ledger_id: int
    token: int
    after: Position
    upto: Position
    last: int


class _CompactionRunDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ledger: int
    token: int
    after: str
    upto: str
    last: int


def encode_runs(runs: Sequence[CompactionRun]) -> bytes:
    """Return the stored form of the earlier runs, for the last entry of a run."""
    return msgspec.json.encode(
        [
            _CompactionRunDocument(
                ledger=one.ledger_id, token=one.token, after=str(one.after), upto=str(one.upto), last=one.last
            )
            for one in runs
        ]
    )


def decode_runs(data: bytes, position: Position, name: str) -> list[CompactionRun]:
    """
    Return the earlier runs that the last entry of a run lists.

    :raises CorruptEntry: the list cannot be decoded.
    """
    try:
        return [
            CompactionRun(one.ledger, one.token, Position.parse(one.after), Position.parse(one.upto), one.last)
            for one in msgspec.json.decode(data, type=list[_CompactionRunDocument])
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptEntry(position, f"its list of earlier runs cannot be decoded: {error}", name) from error


def encode_compacted(line: CompactedEntry) -> Append:
    """Return the entry that holds a line."""
    at = line.position
    header = _HEADER.pack(FORMAT, line.kind.value, line.token, at.ledger_id, at.entry_id)
    return Append(encode_plain(header + line.data))


def decode_compacted(entry: LedgerEntry, name: str) -> CompactedEntry:
    """
    Return the line in an entry.

    :raises UnknownFormat: the entry was written by another release.
    :raises CorruptEntry: the entry is not an entry of a compacted ledger.
    """
    (data, *_) = decode_entry(entry, name)
    if len(data) < _HEADER.size:
        raise CorruptEntry(entry.position, f"{len(data)} bytes are too few for an entry of a compacted ledger", name)
    version, kind, token, ledger_id, entry_id = _HEADER.unpack_from(data)
    if version != FORMAT:
        raise UnknownFormat(f"entry {entry.position} of {name}", version)
    try:
        return CompactedEntry(EntryKind(kind), token, Position(ledger_id, entry_id), data[_HEADER.size :])
    except ValueError as error:
        raise CorruptEntry(entry.position, f"it is of the kind {kind}, which there is not", name) from error


_LEDGERS_PAGE = 100
_ONE = Limit(1)


class CompactedLedgers:
    """
    The runs of one topic, as this process has read them. Each continues where the previous one ended, and the last one
    lists all others.

    A marker is found by binary search, because a run is in the order of the markers, or directly after the previously
    found one. So memory does not grow with the number of markers.
    """

    def __init__(self, store: ILedgerStore, name: str) -> None:
        self.runs: list[CompactionRun] = []
        self.upto = EARLIEST
        """The position up to which the topic was compacted, even if all of its runs are trimmed."""
        self._store = store
        self._name = name
        self._ledger: IManagedLedger | None = None
        self._seen = -1
        self._before: Position | None = None

    async def ledger(self) -> IManagedLedger:
        """Return the managed ledger of compacted entries; create it if it does not exist."""
        self._ledger = self._ledger or await self._store.create(self._name)
        return self._ledger

    async def refresh(self) -> None:
        """Read the list of the runs that were finished before this call and are not trimmed."""
        try:
            self._ledger = self._ledger or await self._store.open(self._name)
        except LedgerNotFound:
            return
        summaries: list[LedgerSummary] = []
        while found := await self._ledger.ledgers(summaries[-1].ledger_id if summaries else self._seen, _LEDGERS_PAGE):
            summaries += found
        for summary in reversed(summaries):
            runs = await self._runs_upto(summary) if summary.entries else None
            if runs is not None:
                self.runs, self.upto, self._seen = runs, max(self.upto, runs[-1].upto), summary.ledger_id
                return

    async def find(self, marker: Position) -> bytes | None:
        """Return the messages of a marker as one entry; None if they were not compacted, or were trimmed."""
        run = next((one for one in self.runs if one.after < marker <= one.upto), None)
        if run is None:
            return None
        try:
            return await self._find_in(run, marker)
        except EntryTrimmed:
            return None

    async def trim(self, before: Position) -> None:
        """Trim the runs all of whose markers are at or before a position."""
        if self._ledger is None or not self.runs:
            return
        kept = [run for run in self.runs if run.upto > before]
        if len(kept) == len(self.runs):
            return
        below = kept[0].ledger_id if kept else (await self._ledger.roll()).open_ledger_id
        await self._ledger.trim(below, frozenset())
        self.runs = kept

    async def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            await self._ledger.close()

    async def _runs_upto(self, summary: LedgerSummary) -> list[CompactionRun] | None:
        """
        Return the run in a ledger preceded by all earlier runs; None if the ledger has no finished run.

        Other processes may have claimed the ledger later, after its first entry. Their entries do not count.
        """
        try:
            claim = await self._line(Position(summary.ledger_id, 0))
            for number in range(summary.entries - 1, 0, -1):
                at = Position(summary.ledger_id, number)
                line = await self._line(at)
                if line.token == claim.token:
                    if line.kind is not EntryKind.DONE:
                        return None
                    run = CompactionRun(summary.ledger_id, claim.token, claim.position, line.position, number - 1)
                    return [*decode_runs(line.data, at, self._name), run]
        except EntryTrimmed:
            pass
        return None

    async def _find_in(self, run: CompactionRun, marker: Position) -> bytes | None:
        low, high = 1, run.last
        if self._before is not None and self._before.ledger_id == run.ledger_id and self._before.entry_id < high:
            number, line = await self._own(run, self._before.entry_id + 1)
            if line is not None and line.position == marker:
                return self._found(run, number, line)
        while low <= high:
            middle = (low + high) // 2
            number, line = await self._own(run, middle)
            if line is None or number > high or line.position > marker:
                high = middle - 1
            elif line.position < marker:
                low = number + 1
            else:
                return self._found(run, number, line)
        return None

    def _found(self, run: CompactionRun, number: int, line: CompactedEntry) -> bytes:
        self._before = Position(run.ledger_id, number)
        return line.data

    async def _own(self, run: CompactionRun, number: int) -> tuple[int, CompactedEntry | None]:
        """Return the run's own first entry from a number on, with its number; None if there is none."""
        while number <= run.last:
            line = await self._line(Position(run.ledger_id, number))
            if line.token == run.token:
                return number, line
            number += 1
        return number, None

    async def _line(self, at: Position) -> CompactedEntry:
        assert self._ledger is not None
        (entry,) = await self._ledger.read(EntryRange(Position(at.ledger_id, at.entry_id - 1), at), _ONE)
        return decode_compacted(entry, self._name)
