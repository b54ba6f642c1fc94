"""
Markers in the topic, and notes and references in the sidecar. Markers and notes store how a transaction ended.

All are encoded as ordinary entries. A reader without this family therefore sees an entry of a transaction, which it can
neither show nor resolve. Their branch has the bit that no branch of a client can have. The markers of one transaction
are appended by one call: all of them are stored consecutively, or none. Each has a format number; an unknown one is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import BRANCH_BITS, Append, Branch, LedgerEntry, Position, TxnID
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.records import UNREADABLE
from txnframework.plugin import foreign_data
from txnframework_legacy.buffer.markers import MARKER_BRANCH, require_own_family
from txnframework_sidecar.parts import MessageRun, Part, Span

FORMAT = 1
_MARKERS = "__sidecar-marker"
_NOTES = "__sidecar-note"
_REFERENCES = "__sidecar-reference"

D = TypeVar("D")
_Count = Annotated[int, Meta(ge=0)]
_BranchNumber = Annotated[int, Meta(ge=0, le=(1 << BRANCH_BITS) - 1)]


class _Format(msgspec.Struct):
    format: int


class _MarkerDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: int
    part: _Count
    parts: _Count
    upto: str
    branches: list[_BranchNumber]
    branch: _BranchNumber
    spans: list[str]
    messages: _Count
    bytes: _Count
    own: bool = False


class _ReferenceDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: int
    branch: _BranchNumber
    span: str
    producer: str
    first: int
    last: int
    messages: _Count
    bytes: _Count


class _NoteDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: int
    branches: list[_BranchNumber]
    upto: str
    marker: str | None


@dataclass(frozen=True, slots=True)
class Marker:
    """
    One part of the list of a committed transaction's messages.

    ``number``: the number of this part, from 0. ``parts``: the number of parts of the commit.

    A commit without messages has one marker with an empty part. ``branches``: all branches that count. Each of their
    entries in the sidecar up to ``upto`` is listed in exactly one marker, and later entries in none.
    """

    txn_id: TxnID
    number: int
    parts: int
    part: Part
    upto: Position
    branches: frozenset[int]

    def first(self, position: Position) -> Position:
        """Return the position of the first marker of the same commit, given the position of this one."""
        return Position(position.ledger_id, position.entry_id - self.number)


@dataclass(frozen=True, slots=True)
class Note:
    """
    The transaction is settled here: its entries in ``branches`` up to ``upto`` count, and no others.

    ``marker``: the position of its first marker in the topic; None if it was aborted.
    """

    txn_id: TxnID
    branches: frozenset[int]
    upto: Position
    marker: Position | None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """An entry of a transaction, stored in the sidecar, or in an own ledger to which the sidecar's entry refers."""

    txn_id: TxnID
    run: MessageRun


def encode_marker(marker: Marker, now_ms: int) -> Append:
    """Return the topic entry for a marker; it counts as many messages as it lists."""
    part = marker.part
    document = _MarkerDocument(
        format=FORMAT,
        part=marker.number,
        parts=marker.parts,
        upto=str(marker.upto),
        branches=sorted(marker.branches),
        branch=part.branch,
        spans=[str(span) for span in part.spans],
        messages=part.messages,
        bytes=part.bytes,
        own=part.own,
    )
    return _append(document, _MARKERS, marker.txn_id, part.messages, now_ms)


def encode_reference(entry: Append, position: Position, now_ms: int) -> Append:
    """
    Return the sidecar's reference to an entry in the transaction's own ledger.

    It has the entry's sequences, so that the sidecar compares them with those of all other entries.
    """
    assert entry.branch is not None
    view = EntryView(entry.data)
    document = _ReferenceDocument(
        format=FORMAT,
        branch=entry.branch.number,
        span=str(Span(position.ledger_id, position.entry_id, position.entry_id)),
        producer=view.producer,
        first=view.first_sequence,
        last=view.last_sequence,
        messages=view.count,
        bytes=len(entry.data),
    )
    kept = _append(document, _REFERENCES, entry.branch.txn_id, entry.messages, now_ms)
    return msgspec.structs.replace(entry, data=kept.data)


def encode_note(note: Note, now_ms: int) -> Append:
    """Return the sidecar entry for a note."""
    document = _NoteDocument(
        format=FORMAT,
        branches=sorted(note.branches),
        upto=str(note.upto),
        marker=None if note.marker is None else str(note.marker),
    )
    return _append(document, _NOTES, note.txn_id, 1, now_ms)


def read_topic_entry(entry: LedgerEntry, topic: str) -> Marker | None:
    """
    Return the marker in an entry of the topic; None if the entry is a message outside transactions.

    :raises UnknownFormat: the marker was written by another release.
    :raises CorruptEntry: the entry is damaged.
    :raises ConfigurationError: the entry was written through another buffer.
    """
    view = EntryView(entry.data, entry.position, topic)
    if view.branch is None:
        return None
    require_own_family(view.branch, entry.position, topic)
    if view.branch.number != MARKER_BRANCH or view.producer != _MARKERS:
        what = f"entry {entry.position}, which a transaction wrote through another buffer"
        raise foreign_data(topic, what, "that buffer")
    document = _document(view, entry.position, topic, _MarkerDocument)
    try:
        spans = tuple(map(Span.parse, document.spans))
        part = Part(document.branch, spans, document.messages, document.bytes, document.own)
        branches = frozenset(document.branches)
        upto = Position.parse(document.upto)
        return Marker(view.branch.txn_id, document.part, document.parts, part, upto, branches)
    except ValueError as error:
        raise CorruptEntry(entry.position, f"its marker cannot be read: {error}", topic) from error


def read_sidecar_entry(entry: LedgerEntry, sidecar: str) -> StoredRun | Note:
    """
    Return the message or the note in an entry of the sidecar.

    :raises UnknownFormat: the note or reference was written by another release.
    :raises CorruptEntry: the entry is damaged, or belongs to no transaction.
    """
    view = EntryView(entry.data, entry.position, sidecar)
    if view.branch is None:
        raise CorruptEntry(entry.position, "it belongs to no transaction, but is in a sidecar", sidecar)
    txn_id, number = view.branch.txn_id, view.branch.number
    if number != MARKER_BRANCH:
        return StoredRun(txn_id, MessageRun.of(view, entry.position, len(entry.data), number))
    if view.producer == _REFERENCES:
        return StoredRun(txn_id, _referred(view, entry.position, sidecar))
    document = _document(view, entry.position, sidecar, _NoteDocument)
    try:
        marker = None if document.marker is None else Position.parse(document.marker)
        return Note(txn_id, frozenset(document.branches), Position.parse(document.upto), marker)
    except ValueError as error:
        raise CorruptEntry(entry.position, f"its note cannot be read: {error}", sidecar) from error


def _referred(view: EntryView, position: Position, sidecar: str) -> MessageRun:
    found = _document(view, position, sidecar, _ReferenceDocument)
    try:
        span = Span.parse(found.span)
    except ValueError as error:
        raise CorruptEntry(position, f"its reference cannot be read: {error}", sidecar) from error
    sequences = (found.first, found.last)
    return MessageRun(
        span, found.branch, found.producer, *sequences, found.messages, found.bytes, position, position, own=True
    )


def _append(document: msgspec.Struct, producer: str, txn_id: TxnID, messages: int, now_ms: int) -> Append:
    message = EntryMessage(None, msgspec.json.encode(document), (), 0, now_ms)
    data = encode_entry([message], producer, Branch(txn_id, MARKER_BRANCH))
    return Append(data, messages, Branch(txn_id))


def _document(view: EntryView, position: Position, name: str, kind: type[D]) -> D:
    value = view.message(0).value or b""  # a marker always has a value; an empty one fails to decode
    try:
        version = msgspec.json.decode(value, type=_Format).format
        if version != FORMAT:
            raise UnknownFormat(f"the record of transaction {view.branch} at {position} of {name}", version)
        return msgspec.json.decode(value, type=kind)
    except UNREADABLE as error:
        raise CorruptEntry(position, f"its transaction record cannot be decoded: {error}", name) from error
