"""
The format of a snapshot: JSON, cut into parts so that no entry is larger than the configured size.

Each part is a plain entry of a log that begins with ``[format 2 bytes][part 2 bytes][parts 2 bytes]``, big-endian. The
parts of one snapshot are appended by one call, so they are consecutive entries of one ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from txnframework.errors import CorruptEntry, InvalidInput, UnknownFormat
from txnframework.interfaces import IManagedLedger
from txnframework.model import Branch, EntryRange, LedgerEntry, Limit, Position, TxnID
from txnframework.model.records import UNREADABLE
from txnframework_legacy.buffer.markers import Marker
from txnframework_legacy.buffer.state import AbortedBranch, OpenTransaction, TopicState
from txnframework_legacy.log.format import decode_entry, encode_plain

FORMAT = 1
_PART = struct.Struct(">HHH")
_PARTS_MAX = 0xFFFF

D = TypeVar("D")
AbortedDocument = tuple[str, str, str]
"""A branch as ``transaction:number``, its last entry, and its marker; positions are ``ledger:entry``."""


class WritingDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The entries of an open transaction."""

    first: str
    branches: dict[str, str]


class SegmentReference(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """
    A reference to a segment of the aborted set.

    ``at``: the segment's last entry. ``upto``: the last marker in the segment. ``last_ledger``: the last ledger of the
    topic with an entry of its branches.
    """

    at: str
    upto: str
    last_ledger: int


class Snapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A topic's state: transactions by their ids; ``aborted`` in the order of markers, after those of ``segments``."""

    upto: str
    writing: dict[str, WritingDocument]
    marked: dict[str, list[int]]
    segments: list[SegmentReference]
    aborted: list[AbortedDocument]
    late: dict[str, str]


class AbortedSegment(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Branches that do not count, in the order of their markers."""

    aborted: list[AbortedDocument]


def encode(
    document: msgspec.Struct, entry_bytes_max: int, option: str = "buffers.marker.snapshot_entry_bytes_max"
) -> list[bytes]:
    """
    Return the entries that hold a document; each stores the number of parts. ``option`` is the option of the size
    limit.
    """
    data = msgspec.json.encode(document)
    room = max(1, entry_bytes_max - len(encode_plain(b"")) - _PART.size)
    pieces = [data[start : start + room] for start in range(0, len(data), room)]
    if len(pieces) > _PARTS_MAX:
        raise InvalidInput(
            f"a snapshot of {len(data)} bytes does not fit into {_PARTS_MAX} entries of {entry_bytes_max} bytes;"
            f" raise {option}"
        )
    return [encode_plain(_PART.pack(FORMAT, part, len(pieces)) + piece) for part, piece in enumerate(pieces)]


def parts_of(last: LedgerEntry, name: str) -> int:
    """Return the number of entries of the document that ends with this one."""
    (part, parts), _ = _piece_of(last, name)
    if part != parts - 1:
        raise CorruptEntry(last.position, f"it is part {part} of {parts}, and nothing stands behind it", name)
    return parts


def decode_snapshot(entries: Sequence[LedgerEntry], name: str) -> Snapshot:
    """Return the snapshot that these entries hold."""
    return decode_document(entries, name, Snapshot)


def decode_segment(entries: Sequence[LedgerEntry], name: str) -> dict[Branch, AbortedBranch]:
    """Return the branches of a segment, with the positions of their last entries and markers."""
    document = decode_document(entries, name, AbortedSegment)
    try:
        return aborted_of(document.aborted)
    except ValueError as error:
        raise CorruptEntry(entries[-1].position, f"it is no segment of a snapshot: {error}", name) from error


def documents_of(aborted: Iterable[tuple[Branch, AbortedBranch]]) -> list[AbortedDocument]:
    """Return the stored form of branches that do not count."""
    return [(_text_of(branch), str(one.last), str(one.marker)) for branch, one in aborted]


def aborted_of(documents: Iterable[AbortedDocument]) -> dict[Branch, AbortedBranch]:
    """Return the branches in these documents, in the same order."""
    return {
        _branch_of(text): AbortedBranch(Position.parse(last), Position.parse(marker))
        for text, last, marker in documents
    }


def snapshot_of(
    state: TopicState, segments: list[SegmentReference], aborted: Iterable[tuple[Branch, AbortedBranch]]
) -> Snapshot:
    """Return the stored form of a state. ``segments`` hold all aborted branches except those in ``aborted``."""
    return Snapshot(
        upto=str(state.upto),
        writing={
            str(txn): WritingDocument(
                first=str(one.first), branches={str(number): str(last) for number, last in one.branches.items()}
            )
            for txn, one in state.writing.items()
        },
        marked={str(txn): sorted(marker.branches) for txn, marker in state.marked.items()},
        segments=segments,
        aborted=documents_of(aborted),
        late={str(at): _text_of(branch) for at, branch in state.late.items()},
    )


def state_of(found: Snapshot, sealed: dict[Branch, AbortedBranch]) -> TopicState:
    """
    Return the state of a snapshot, with the branches of its segments.

    :raises ValueError: a value cannot be parsed.
    """
    return TopicState(
        Position.parse(found.upto),
        {
            TxnID.parse(txn): OpenTransaction(
                Position.parse(one.first), {int(number): Position.parse(at) for number, at in one.branches.items()}
            )
            for txn, one in found.writing.items()
        },
        {TxnID.parse(txn): Marker(TxnID.parse(txn), frozenset(some)) for txn, some in found.marked.items()},
        sealed | aborted_of(found.aborted),
        {Position.parse(at): _branch_of(text) for at, text in found.late.items()},
    )


def decode_document(entries: Sequence[LedgerEntry], name: str, kind: type[D]) -> D:
    """Return the document that these entries hold."""
    data = b""
    for number, entry in enumerate(entries):
        (part, parts), piece = _piece_of(entry, name)
        if (part, parts) != (number, len(entries)):
            reason = f"it is part {part} of {parts} where part {number} of {len(entries)} has to stand"
            raise CorruptEntry(entry.position, reason, name)
        data += piece
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise CorruptEntry(entries[-1].position, f"it is no snapshot: {error}", name) from error


def _piece_of(entry: LedgerEntry, name: str) -> tuple[tuple[int, int], bytes]:
    (data,) = decode_entry(entry, name)
    if len(data) < _PART.size:
        raise CorruptEntry(entry.position, f"{len(data)} bytes are too few for a part of a snapshot", name)
    version, part, parts = _PART.unpack_from(data)
    if version != FORMAT:
        raise UnknownFormat(f"entry {entry.position} of {name}", version)
    return (part, parts), data[_PART.size :]


def _text_of(branch: Branch) -> str:
    return f"{branch.txn_id}:{branch.number}"


def _branch_of(text: str) -> Branch:
    txn, _, number = text.partition(":")
    return Branch(TxnID.parse(txn), int(number))


PAGE = Limit(100)


async def read_document(ledger: IManagedLedger, last: Position) -> list[LedgerEntry]:
    """
    Return the entries of the document whose last entry is at ``last``; an empty list if no entry is stored there.

    :raises EntryTrimmed: the document was trimmed.
    """
    before = Position(last.ledger_id, last.entry_id - 1)
    found = await ledger.read(EntryRange(before, last), Limit(1))
    if not found:
        return []
    after = Position(last.ledger_id, last.entry_id - parts_of(found[0], ledger.name))
    entries: list[LedgerEntry] = []
    while after < before:
        page = await ledger.read(EntryRange(after, before), PAGE)
        if not page:
            break
        entries += page
        after = page[-1].position
    return [*entries, found[0]]
