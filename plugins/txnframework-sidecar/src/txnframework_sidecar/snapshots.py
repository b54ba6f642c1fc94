"""Snapshots of the state of a topic and its sidecar, stored beside them, so that recovery reads on from there."""

from __future__ import annotations

import msgspec

from txnframework.errors import CorruptEntry
from txnframework.interfaces import ILedgerStore
from txnframework.model import Position, TxnID
from txnframework_legacy.buffer.documents import DocumentLedger
from txnframework_legacy.buffer.snapshot_format import branch_text, parse_branch
from txnframework_sidecar.markers import Note
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import MessageRun, Span
from txnframework_sidecar.state import CommitMarkers, LateEntries, SidecarState, TopicState


class MessageRunDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A run of an open transaction, with the fields of ``MessageRun``."""

    span: str
    branch: int
    producer: str
    first: int
    last: int
    messages: int
    bytes: int
    begun: str
    upto: str
    own: bool = False


class CommitMarkersDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A commit whose markers are stored in the topic."""

    first: str
    branches: list[int]
    upto: str
    noted: bool


class NoteDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A transaction that is settled here."""

    branches: list[int]
    upto: str
    marker: str | None


class Snapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    ``TopicState`` and ``SidecarState``, each with the position up to which it was read.

    Transactions by their ids, branches as ``transaction:number``, positions as ``ledger:entry``.
    """

    topic: str
    marked: dict[str, CommitMarkersDocument]
    repeated: list[str]
    ahead: dict[str, str]
    references: list[tuple[str, int]]
    own: dict[str, str]
    sidecar: str
    writing: dict[str, list[MessageRunDocument]]
    noted: dict[str, NoteDocument]
    aborted: dict[str, str]
    late: dict[str, tuple[str, str]]

    @property
    def topic_upto(self) -> Position:
        """The position up to which the topic was read."""
        return Position.parse(self.topic)

    @property
    def sidecar_upto(self) -> Position:
        """The position up to which the sidecar was read."""
        return Position.parse(self.sidecar)


def snapshot_ledger(ledgers: ILedgerStore, name: str, options: SidecarOptions) -> DocumentLedger[Snapshot]:
    """Return the snapshots of one topic, of all processes."""
    option = "buffers.sidecar.snapshot_entry_bytes_max"
    return DocumentLedger(ledgers, name, Snapshot, options.snapshot_entry_bytes_max, option)


def snapshot_of(topic: TopicState, sidecar: SidecarState) -> Snapshot:
    """Return the snapshot of this state."""
    return Snapshot(
        topic=str(topic.upto),
        marked={
            str(txn): CommitMarkersDocument(
                first=str(one.first), branches=sorted(one.branches), upto=str(one.upto), noted=one.noted
            )
            for txn, one in topic.marked.items()
        },
        repeated=[str(at) for at in sorted(topic.repeated)],
        ahead={str(txn): str(at) for txn, at in topic.early_notes.items()},
        references=[(str(at), ledger_id) for at, ledger_id in topic.references.lowest],
        own={str(txn): str(last) for txn, last in topic.references.own.items()},
        sidecar=str(sidecar.upto),
        writing={str(txn): [_document_of(run) for run in runs] for txn, runs in sidecar.writing.items()},
        noted={
            str(txn): NoteDocument(
                branches=sorted(note.branches),
                upto=str(note.upto),
                marker=None if note.marker is None else str(note.marker),
            )
            for txn, note in sidecar.noted.items()
        },
        aborted={branch_text(branch): str(last) for branch, last in sidecar.aborted.items()},
        late={branch_text(branch): (str(late.first), str(late.last)) for branch, late in sidecar.late.items()},
    )


def restore(found: Snapshot, topic: TopicState, sidecar: SidecarState) -> None:
    """
    Restore both states from a snapshot.

    :raises CorruptEntry: a value in it cannot be parsed.
    """
    at = Position.parse
    try:
        topic.upto = at(found.topic)
        topic.marked = {
            TxnID.parse(txn): CommitMarkers(at(one.first), frozenset(one.branches), at(one.upto), one.noted)
            for txn, one in found.marked.items()
        }
        topic.repeated = set(map(at, found.repeated))
        topic.early_notes = {TxnID.parse(txn): at(text) for txn, text in found.ahead.items()}
        topic.references.lowest.extend((at(text), ledger_id) for text, ledger_id in found.references)
        topic.references.own.update({TxnID.parse(txn): at(last) for txn, last in found.own.items()})
        sidecar.upto = at(found.sidecar)
        sidecar.writing = {TxnID.parse(txn): [_run_of(one) for one in runs] for txn, runs in found.writing.items()}
        sidecar.noted = {
            TxnID.parse(txn): Note(
                TxnID.parse(txn),
                frozenset(one.branches),
                at(one.upto),
                None if one.marker is None else at(one.marker),
            )
            for txn, one in found.noted.items()
        }
        sidecar.aborted = {parse_branch(text): at(last) for text, last in found.aborted.items()}
        sidecar.late = {
            parse_branch(text): LateEntries(at(first), at(last)) for text, (first, last) in found.late.items()
        }
    except ValueError as error:
        raise CorruptEntry(None, f"a snapshot of a topic with a sidecar cannot be read: {error}") from error


def _document_of(run: MessageRun) -> MessageRunDocument:
    return MessageRunDocument(
        span=str(run.span),
        branch=run.branch,
        producer=run.producer,
        first=run.first_sequence,
        last=run.last_sequence,
        messages=run.messages,
        bytes=run.bytes,
        begun=str(run.begun),
        upto=str(run.upto),
        own=run.own,
    )


def _run_of(one: MessageRunDocument) -> MessageRun:
    begun, upto = Position.parse(one.begun), Position.parse(one.upto)
    counts = (one.first, one.last, one.messages, one.bytes)
    return MessageRun(Span.parse(one.span), one.branch, one.producer, *counts, begun, upto, one.own)
