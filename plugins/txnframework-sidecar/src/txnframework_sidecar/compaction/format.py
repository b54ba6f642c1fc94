"""
The format of a compacted ledger.

Each attempt to compact, a run, has a ledger of its own in the managed ledger, and a token in each of its entries. Its
first entry claims the ledger. The next ones hold the rewritten messages. The last one stores how far the run came and
which earlier runs are left; only then the run counts. Each is a plain entry of a log that begins with ``[format 2
bytes][kind 1 byte][token 8 bytes][ledger 8 bytes][entry 8 bytes]``, big-endian; an unknown format is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import Append, LedgerEntry, Position
from txnframework_legacy.log.format import decode_entry, encode_plain

FORMAT = 1
TOKEN_BITS = 63
_HEADER = struct.Struct(">HBQqq")


class Kind(Enum):
    """
    The kind of an entry: the claim with the start position, the messages of a marker, or the end with the last
    position.
    """

    CLAIM = 0
    KEPT = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a run; ``position`` is a position in the topic."""

    kind: Kind
    token: int
    position: Position
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: the markers after ``after`` up to ``upto``, in entries 1 to ``last`` of its ledger."""

    ledger_id: int
    token: int
    after: Position
    upto: Position
    last: int


class _RunDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ledger: int
    token: int
    after: str
    upto: str
    last: int


def encode_runs(runs: Sequence[Run]) -> bytes:
    """Return the stored form of the earlier runs, for the last entry of a run."""
    return msgspec.json.encode(
        [
            _RunDocument(ledger=one.ledger_id, token=one.token, after=str(one.after), upto=str(one.upto), last=one.last)
            for one in runs
        ]
    )


def decode_runs(data: bytes, position: Position, name: str) -> list[Run]:
    """
    Return the earlier runs that the last entry of a run lists.

    :raises CorruptEntry: the list cannot be decoded.
    """
    try:
        return [
            Run(one.ledger, one.token, Position.parse(one.after), Position.parse(one.upto), one.last)
            for one in msgspec.json.decode(data, type=list[_RunDocument])
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptEntry(position, f"the runs before it cannot be read: {error}", name) from error


def encode_line(line: Line) -> Append:
    """Return the entry that holds a line."""
    at = line.position
    header = _HEADER.pack(FORMAT, line.kind.value, line.token, at.ledger_id, at.entry_id)
    return Append(encode_plain(header + line.data))


def decode_line(entry: LedgerEntry, name: str) -> Line:
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
        return Line(Kind(kind), token, Position(ledger_id, entry_id), data[_HEADER.size :])
    except ValueError as error:
        raise CorruptEntry(entry.position, f"it is of the kind {kind}, which there is not", name) from error
