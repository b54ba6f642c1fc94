"""
What stands in a compacted ledger.

Each attempt to compact, a run, has a ledger of its own in the row, and every entry of it a token. It claims the ledger
with its first entry, writes what it keeps, and says at last how far it came, and which runs before it are left: only
then it counts. An entry is a plain one of a log that begins with
``[format 2 bytes][kind 1 byte][token 8 bytes][ledger 8 bytes][entry 8 bytes]``, big-endian; an unknown format is
refused.
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
    """What an entry is: who writes here, and behind which place; what a marker lists; up to where the run came."""

    CLAIM = 0
    KEPT = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a run; ``position`` is a place in the topic."""

    kind: Kind
    token: int
    position: Position
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """What one attempt kept: of the markers behind ``after`` up to ``upto``, in entries 1 to ``last`` of its ledger."""

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
    """Return what the end of a run says of those before it."""
    return msgspec.json.encode(
        [
            _RunDocument(ledger=one.ledger_id, token=one.token, after=str(one.after), upto=str(one.upto), last=one.last)
            for one in runs
        ]
    )


def decode_runs(data: bytes, position: Position, name: str) -> list[Run]:
    """
    Return the runs that stand before one, by its end.

    :raises CorruptEntry: they cannot be read.
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
    Return what an entry holds.

    :raises UnknownFormat: it was written by another release.
    :raises CorruptEntry: it is none of a compacted ledger.
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
