"""The stored form of entries of compacted ledgers."""

from __future__ import annotations

import pytest

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import Branch, Position, TxnID
from txnframework.model.compacted import CompactedEntry, decode_compacted, encode_compacted, encode_whole
from txnframework.model.entries import EntryMessage, encode_entry

AT = Position(9, 0)
ENTRY = CompactedEntry(
    Position(3, 4),
    5,
    "producer",
    Branch(TxnID(1, 2), 3),
    (
        (1, EntryMessage(b"key", b"value", (("name", b"content"),), 7, 1_000)),
        (4, EntryMessage(None, b"", (), 9, 1_001)),
    ),
)


def test_what_is_written_is_read() -> None:
    """Positions, producers and contents are preserved."""
    assert decode_compacted(encode_compacted(ENTRY), AT) == ENTRY


def test_an_entry_of_which_all_was_kept() -> None:
    """An entry with all of its messages is the same, whether they were decoded or not."""
    messages = [message for _, message in ENTRY.messages]
    whole = CompactedEntry(ENTRY.position, 2, ENTRY.producer, ENTRY.branch, tuple(enumerate(messages)))
    stored = encode_entry(messages, ENTRY.producer, ENTRY.branch)
    assert encode_whole(stored, ENTRY.position, 2) == encode_compacted(whole)


def test_what_is_not_known_is_refused() -> None:
    """An unknown format is named; damage is never repaired by guessing."""
    data = encode_compacted(ENTRY)
    with pytest.raises(UnknownFormat, match="version 2"):
        decode_compacted(data[:4] + b"\2" + data[5:], AT)
    changed = (data.replace(b"[1,4]", b"[1]  "), data.replace(b"3:4", b"3;4"))
    for damaged in (b"", data[1:], data[:20], data[:-1], *changed):
        with pytest.raises(CorruptEntry):
            decode_compacted(damaged, AT)
