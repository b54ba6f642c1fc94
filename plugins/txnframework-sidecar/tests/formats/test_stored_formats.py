"""What the sidecar stores: this release reads what earlier ones wrote, and writes other bytes only in a new version."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from txnframework.model import Append, Branch, LedgerEntry, Position, TxnID
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.ids import LOG_FAMILY_BIT
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_legacy.buffer import documents
from txnframework_legacy.buffer.documents import decode_document
from txnframework_legacy.buffer.markers import MARKER_BRANCH
from txnframework_sidecar import compacted, markers
from txnframework_sidecar.compacted import (
    CompactedEntry,
    CompactionRun,
    EntryKind,
    decode_compacted,
    decode_runs,
    encode_compacted,
    encode_runs,
)
from txnframework_sidecar.ledgers import ledger_names
from txnframework_sidecar.markers import (
    Marker,
    Note,
    StoredRun,
    encode_marker,
    encode_note,
    encode_reference,
    read_sidecar_entry,
    read_topic_entry,
)
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import MessageRun, Part, Span
from txnframework_sidecar.snapshots import Snapshot, restore, snapshot_of
from txnframework_sidecar.state import CommitMarkers, LateEntries, References, SidecarState, TopicState

SAMPLES = Path(__file__).parent / "samples"
TOPIC = "persistent://public/default/orders"
SIDECAR = "a-sidecar"
NOW_MS = 1_700_000_000_000
AT, UPTO = Position(4, 9), Position(5, 6)
TXN, EARLIER = TxnID(LOG_FAMILY_BIT | 3, 77), TxnID(LOG_FAMILY_BIT | 3, 70)
RUN = MessageRun(Span(5, 2, 6), 2, "printer", 5, 9, 5, 500, Position(5, 2), Position(5, 6))
MARKER = Marker(TXN, 1, 3, Part(2, (Span(5, 2, 6), Span(6, 0, 0)), 6, 600), UPTO, frozenset({0, 2}))
OWN_MARKER = Marker(TXN, 0, 1, Part(2, (Span(5, 2, 6),), 5, 500, own=True), UPTO, frozenset({2}))
NOTE, ABORTED_NOTE = Note(TXN, frozenset({0, 2}), UPTO, AT), Note(EARLIER, frozenset(), UPTO, None)
MESSAGES = (EntryMessage(b"ada", b"one", (), 5, NOW_MS), EntryMessage(None, b"two", (), 6, NOW_MS))
BY_CLIENT = Append(encode_entry(MESSAGES, "printer", Branch(TXN, 2)), 2, Branch(TXN, 2))
REFERENCE = StoredRun(TXN, MessageRun(Span(7, 3, 3), 2, "printer", 5, 6, 2, len(BY_CLIENT.data), AT, AT, own=True))
RUNS = [CompactionRun(1, 11, Position(1, -1), Position(2, 7), 6), CompactionRun(2, 12, Position(2, 7), AT, 3)]
TOPIC_STATE = TopicState(
    AT,
    {TXN: CommitMarkers(Position(4, 7), frozenset({0, 2}), UPTO, noted=True)},
    {Position(4, 8)},
    {EARLIER: Position(4, 12)},
    References(deque([(Position(4, 7), 5)]), {TXN: Position(4, 7)}),
)
SIDECAR_STATE = SidecarState(
    SidecarOptions(),
    UPTO,
    {TXN: [RUN, replace(RUN, own=True)]},
    {TXN: NOTE, EARLIER: ABORTED_NOTE},
    {Branch(EARLIER, 1): Position(5, 1)},
    {Branch(TXN, 2): LateEntries(Position(5, 4), Position(5, 5))},
)


def with_record_format(data: bytes, version: int) -> bytes:
    """Return a marker, note or reference with another format number."""
    view = EntryView(data)
    found = view.message(0)
    assert found.value is not None
    value = msgspec.json.encode({**msgspec.json.decode(found.value), "format": version})
    return encode_entry([EntryMessage(None, value, (), 0, NOW_MS)], view.producer, view.branch)


def with_number_at(at: int) -> Callable[[bytes, int], bytes]:
    """Return how an entry gets another version, of two bytes at this place."""
    return lambda data, version: data[:at] + struct.pack(">H", version) + data[at + 2 :]


def record(name: str, value: object, encoded: Append, read: Callable[[LedgerEntry, str], object]) -> StoredSample:
    """Return the sample of a marker, a note or a reference."""
    where = TOPIC if read is read_topic_entry else SIDECAR
    return StoredSample(
        f"{name}.bin",
        markers.FORMAT,
        value,
        lambda: encoded.data,
        lambda data: read(LedgerEntry(AT, data), where),
        refused_as=f"the record of transaction {Branch(TXN, MARKER_BRANCH)} at {AT} of {where}",
        with_version=with_record_format,
    )


def line(name: str, value: CompactedEntry) -> StoredSample:
    """Return the sample of an entry of a compacted ledger."""
    return StoredSample(
        f"compacted_{name}.bin",
        compacted.FORMAT,
        value,
        lambda: encode_compacted(value).data,
        lambda data: decode_compacted(LedgerEntry(AT, data), "c"),
        refused_as=f"entry {AT} of c",
        with_version=with_number_at(4),
    )


def read_snapshot(data: bytes) -> tuple[TopicState, SidecarState]:
    """Return the states that a snapshot restores."""
    topic, sidecar = TopicState(), SidecarState(SidecarOptions())
    restore(decode_document([LedgerEntry(AT, data)], SIDECAR, Snapshot), topic, sidecar)
    return topic, sidecar


NAMES = msgspec.to_builtins(ledger_names(TOPIC, 2))
SAMPLED = [
    record("marker", MARKER, encode_marker(MARKER, NOW_MS), read_topic_entry),
    record("marker_of_an_own_ledger", OWN_MARKER, encode_marker(OWN_MARKER, NOW_MS), read_topic_entry),
    record("note", NOTE, encode_note(NOTE, NOW_MS), read_sidecar_entry),
    record("reference", REFERENCE, encode_reference(BY_CLIENT, Position(7, 3), NOW_MS), read_sidecar_entry),
    line("claim", CompactedEntry(EntryKind.CLAIM, 12, Position(2, 7))),
    line("messages", CompactedEntry(EntryKind.MESSAGES, 12, Position(2, 8), BY_CLIENT.data)),
    line("done", CompactedEntry(EntryKind.DONE, 12, AT, encode_runs(RUNS))),
    StoredSample(
        "snapshot.bin",
        documents.FORMAT,
        (TOPIC_STATE, SIDECAR_STATE),
        lambda: documents.encode(snapshot_of(TOPIC_STATE, SIDECAR_STATE), 10_000)[0],
        read_snapshot,
        refused_as=f"entry {AT} of {SIDECAR}",
        with_version=with_number_at(4),
    ),
    StoredSample("names.json", 1, NAMES, lambda: msgspec.json.format(msgspec.json.encode(NAMES)), msgspec.json.decode),
]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, SAMPLED)


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, SAMPLED)


def test_later_versions() -> None:
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused(SAMPLED, "txnframework_sidecar")


def test_earlier_runs() -> None:
    """The last entry of a run lists the earlier runs as it was given them; its own format covers the list."""
    done: Any = SAMPLED[6].value
    assert decode_runs(done.data, AT, "c") == RUNS
