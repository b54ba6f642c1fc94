"""The documents of a snapshot, and their conversion from and to a topic's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from txnframework.errors import CorruptEntry
from txnframework.model import Branch, LedgerEntry, Position, TxnID
from txnframework_legacy.buffer.documents import decode_document
from txnframework_legacy.buffer.markers import Marker
from txnframework_legacy.buffer.state import AbortedBranch, OpenTransaction, TopicState

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


def decode_segment(entries: Sequence[LedgerEntry], name: str) -> dict[Branch, AbortedBranch]:
    """Return the branches of a segment, with the positions of their last entries and markers."""
    document = decode_document(entries, name, AbortedSegment)
    try:
        return aborted_of(document.aborted)
    except ValueError as error:
        raise CorruptEntry(entries[-1].position, f"not a segment of a snapshot: {error}", name) from error


def documents_of(aborted: Iterable[tuple[Branch, AbortedBranch]]) -> list[AbortedDocument]:
    """Return the stored form of branches that do not count."""
    return [(branch_text(branch), str(one.last), str(one.marker)) for branch, one in aborted]


def aborted_of(documents: Iterable[AbortedDocument]) -> dict[Branch, AbortedBranch]:
    """Return the branches in these documents, in the same order."""
    return {
        parse_branch(text): AbortedBranch(Position.parse(last), Position.parse(marker))
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
        late={str(at): branch_text(branch) for at, branch in state.late.items()},
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
        {Position.parse(at): parse_branch(text) for at, text in found.late.items()},
    )


def branch_text(branch: Branch) -> str:
    """Return the stored form of a branch, ``transaction:number``."""
    return f"{branch.txn_id}:{branch.number}"


def parse_branch(text: str) -> Branch:
    """
    Return the branch with this stored form.

    :raises ValueError: the text is not a branch.
    """
    txn, _, number = text.partition(":")
    return Branch(TxnID.parse(txn), int(number))
