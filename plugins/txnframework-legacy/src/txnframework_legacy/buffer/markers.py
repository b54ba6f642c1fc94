"""
Markers: the outcome of a transaction, as an entry of the topic.

A marker is encoded as an ordinary entry. A reader without this family therefore sees an entry of a transaction, which
it can neither show nor resolve. Its branch has the bit that no branch of a client can have.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import BRANCH_BITS, Append, Branch, LedgerEntry, Position, State, Transaction, TxnID
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage, EntryView
from txnframework.model.ids import LOG_FAMILY
from txnframework.model.records import UNREADABLE
from txnframework.plugin import foreign_data

MARKER_BRANCH = 1 << BRANCH_BITS
FORMAT = 1
_PRODUCER = "__transaction-marker"


class _Format(msgspec.Struct):
    """A marker without a number has format 1, which does not store it; every later format stores its number."""

    format: int = FORMAT


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    state: str
    branches: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction; ``branches`` are those that count, empty if it was aborted."""

    txn_id: TxnID
    branches: frozenset[int]

    def counts(self, branch: int) -> bool:
        """Return whether a branch's entries before the marker count."""
        return branch in self.branches


def marker_of(ended: Transaction, now_ms: int) -> Append:
    """Return the entry that stores the outcome of a transaction; lag and admission count it as zero messages."""
    branches = sorted(ended.branches or ()) if ended.state is State.COMMITTED else None
    value = msgspec.json.encode(_Document(state=ended.state.value, branches=branches))
    message = EntryMessage(None, value, (), 0, now_ms)
    data = encode_entry([message], _PRODUCER, Branch(ended.txn_id, MARKER_BRANCH))
    return Append(data, 0, Branch(ended.txn_id))


def require_own_family(branch: Branch, position: Position, topic: str) -> None:
    """
    Raise ``ConfigurationError`` unless a branch is of this family: a transaction of another one gets no marker here.
    """
    if branch.txn_id.family != LOG_FAMILY:
        what = f"entry {position} of a transaction of the {branch.txn_id.family} family"
        raise foreign_data(topic, what, "plugins of that family")


def read_entry(entry: LedgerEntry, segment: str) -> Branch | Marker | None:
    """
    Return the branch of an entry, the ``Marker`` of a marker entry, or None for an entry outside transactions.

    :raises UnknownFormat: the entry was written by another release.
    :raises CorruptEntry: the entry is damaged.
    :raises ConfigurationError: the entry was written through another buffer.
    """
    view = EntryView(entry.data, entry.position, segment)
    branch = view.branch
    if branch is None:
        return None
    require_own_family(branch, entry.position, segment)
    if branch.number != MARKER_BRANCH:
        return branch
    if view.producer != _PRODUCER:
        raise foreign_data(segment, f"entry {entry.position}, the end of a transaction", "the buffer that wrote it")
    value = view.message(0).value or b""
    try:
        version = msgspec.json.decode(value, type=_Format).format
        if version != FORMAT:
            raise UnknownFormat(f"the marker of transaction {branch.txn_id} at {entry.position} of {segment}", version)
        document = msgspec.json.decode(value, type=_Document)
    except UNREADABLE as error:
        raise CorruptEntry(entry.position, f"its marker cannot be decoded: {error}", segment) from error
    return Marker(branch.txn_id, frozenset(document.branches or ()))
