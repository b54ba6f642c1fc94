"""
Markers in the topic and notes in the sidecar, which say how a transaction ended, and references there to what it wrote.

All are encoded as any entry, so that whoever reads the ledger without this family sees an entry of a transaction,
which it can neither show nor judge. Their branch has the bit that no branch of a client can have. The markers of one
transaction are appended by one call, and so stand adjacent, or not at all. Each has a format; an unknown one is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import BRANCH_BITS, Append, Branch, LedgerEntry, Position, TxnID
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.records import UNREADABLE
from txnframework.plugin import written_elsewhere
from txnframework_legacy.buffer.markers import MARKER_BRANCH, require_own_family
from txnframework_sidecar.model.parts import Part, Run, Span

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
    The transaction was committed, and these are its messages; ``number`` counts the ``parts`` of one commit from 0.

    A commit of which nothing counts has one without messages. ``branches``: all that count; what they wrote up to
    ``upto`` of the sidecar, and nothing behind it, is listed in one of the markers.
    """

    txn_id: TxnID
    number: int
    parts: int
    part: Part
    upto: Position
    branches: frozenset[int]

    def first(self, position: Position) -> Position:
        """Return where the first marker of the same commit stands, if this one stands at a position."""
        return Position(position.ledger_id, position.entry_id - self.number)


@dataclass(frozen=True, slots=True)
class Note:
    """
    The transaction is over: what it wrote in ``branches`` up to ``upto`` counts, and nothing else of it.

    ``marker``: where its markers in the topic begin; None: it was aborted, so there is none.
    """

    txn_id: TxnID
    branches: frozenset[int]
    upto: Position
    marker: Position | None


@dataclass(frozen=True, slots=True)
class Written:
    """An entry that a transaction wrote, in the sidecar or, as its entry there says, in a ledger of its own."""

    txn_id: TxnID
    run: Run


def encode_marker(marker: Marker, now_ms: int) -> Append:
    """Return the entry of the topic that holds a marker; it counts as many messages as it lists."""
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
    Return what the sidecar holds for an entry that stands in the ledger of its transaction's own.

    It has the sequences of that entry, so that the sidecar compares them with those of every other one.
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
    return replace(entry, data=kept.data)


def encode_note(note: Note, now_ms: int) -> Append:
    """Return the entry of the sidecar that holds a note."""
    document = _NoteDocument(
        format=FORMAT,
        branches=sorted(note.branches),
        upto=str(note.upto),
        marker=None if note.marker is None else str(note.marker),
    )
    return _append(document, _NOTES, note.txn_id, 1, now_ms)


def read_topic_entry(entry: LedgerEntry, topic: str) -> Marker | None:
    """
    Return what an entry of the topic says if it is a marker; None: it is a message outside transactions.

    :raises UnknownFormat: the marker was written by another release.
    :raises CorruptEntry: the entry is damaged.
    :raises ConfigurationError: it was written through another buffer.
    """
    view = EntryView(entry.data, entry.position, topic)
    if view.branch is None:
        return None
    require_own_family(view.branch, entry.position, topic)
    if view.branch.number != MARKER_BRANCH or view.producer != _MARKERS:
        what = f"entry {entry.position}, which a transaction wrote through another buffer"
        raise written_elsewhere(topic, what, "that buffer")
    document = _document(view, entry.position, topic, _MarkerDocument)
    try:
        spans = tuple(map(Span.parse, document.spans))
        part = Part(document.branch, spans, document.messages, document.bytes, document.own)
        branches = frozenset(document.branches)
        upto = Position.parse(document.upto)
        return Marker(view.branch.txn_id, document.part, document.parts, part, upto, branches)
    except ValueError as error:
        raise CorruptEntry(entry.position, f"its marker cannot be read: {error}", topic) from error


def read_sidecar_entry(entry: LedgerEntry, sidecar: str) -> Written | Note:
    """
    Return what an entry of the sidecar says.

    :raises UnknownFormat: the note was written by another release.
    :raises CorruptEntry: it is damaged, or of no transaction.
    """
    view = EntryView(entry.data, entry.position, sidecar)
    if view.branch is None:
        raise CorruptEntry(entry.position, "it is of no transaction, and so has no place in a sidecar", sidecar)
    txn_id, number = view.branch.txn_id, view.branch.number
    if number != MARKER_BRANCH:
        return Written(txn_id, Run.of(view, entry.position, len(entry.data), number))
    if view.producer == _REFERENCES:
        return Written(txn_id, _referred(view, entry.position, sidecar))
    document = _document(view, entry.position, sidecar, _NoteDocument)
    try:
        marker = None if document.marker is None else Position.parse(document.marker)
        return Note(txn_id, frozenset(document.branches), Position.parse(document.upto), marker)
    except ValueError as error:
        raise CorruptEntry(entry.position, f"its note cannot be read: {error}", sidecar) from error


def _referred(view: EntryView, position: Position, sidecar: str) -> Run:
    found = _document(view, position, sidecar, _ReferenceDocument)
    try:
        span = Span.parse(found.span)
    except ValueError as error:
        raise CorruptEntry(position, f"its reference cannot be read: {error}", sidecar) from error
    sequences = (found.first, found.last)
    return Run(
        span, found.branch, found.producer, *sequences, found.messages, found.bytes, position, position, own=True
    )


def _append(document: msgspec.Struct, producer: str, txn_id: TxnID, messages: int, now_ms: int) -> Append:
    message = EntryMessage(None, msgspec.json.encode(document), (), 0, now_ms)
    data = encode_entry([message], producer, Branch(txn_id, MARKER_BRANCH))
    return Append(data, messages, Branch(txn_id))


def _document(view: EntryView, position: Position, name: str, kind: type[D]) -> D:
    value = view.message(0).value or b""  # a marker has a value: without one it cannot be read
    try:
        version = msgspec.json.decode(value, type=_Format).format
        if version != FORMAT:
            raise UnknownFormat(f"what is said of transaction {view.branch} at {position} of {name}", version)
        return msgspec.json.decode(value, type=kind)
    except UNREADABLE as error:
        raise CorruptEntry(position, f"what is said of a transaction cannot be read there: {error}", name) from error
