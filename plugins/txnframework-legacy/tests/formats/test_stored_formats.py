"""The log family's formats: this release reads what earlier ones wrote, and writes others only with a new number."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from txnframework.model import Branch, LedgerEntry, Position, State, Transaction, TxnID
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.ids import LOG_FAMILY_BIT
from txnframework.model.metadata import Key, Record
from txnframework.model.records import decode, encode
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_legacy.buffer import documents, markers
from txnframework_legacy.buffer.documents import decode_document
from txnframework_legacy.buffer.markers import MARKER_BRANCH, Marker, marker_of, read_entry
from txnframework_legacy.buffer.snapshot_format import (
    AbortedSegment,
    SegmentReference,
    Snapshot,
    decode_segment,
    documents_of,
    snapshot_of,
    state_of,
)
from txnframework_legacy.buffer.state import AbortedBranch, OpenTransaction, TopicState
from txnframework_legacy.coordinator import records as transactions
from txnframework_legacy.ledger_names import KINDS, ledger_name
from txnframework_legacy.log import LogRecord, switches
from txnframework_legacy.log import format as log_format
from txnframework_legacy.log.format import RecordPosition, decode_entry, encode_batch, encode_plain
from txnframework_legacy.log.switches import LogKind, SwitchDocument
from txnframework_legacy.pending_acks import records as pending_acks

SAMPLES = Path(__file__).parent / "samples"
TOPIC = "persistent://public/default/orders"
LOG = "a-log"
AT = Position(4, 9)
NOW_MS = 1_700_000_000_000
TXN, EARLIER = TxnID(LOG_FAMILY_BIT | 3, 77), TxnID(LOG_FAMILY_BIT | 3, 70)
BRANCH, ABORTED = Branch(TXN, 2), AbortedBranch(Position(4, 7), Position(4, 8))
TRANSACTIONS: list[Any] = [
    transactions.New(number=77, created_ms=NOW_MS, deadline_ms=NOW_MS + 60_000, principal="ada", session="s-1"),
    transactions.New(number=78, created_ms=NOW_MS, deadline_ms=NOW_MS + 60_000),
    transactions.AddPartition(number=77, segments=[TOPIC]),
    transactions.AddSubscription(number=77, subscriptions=[(TOPIC, "billing")]),
    transactions.Update(number=77, expected="OPEN", state="COMMITTING", at_ms=NOW_MS, branches=[0, 2]),
    transactions.Update(number=78, expected="OPEN", state="ABORTING", at_ms=NOW_MS),
    transactions.Forget(numbers=[70, 71]),
]
ACKED = pending_acks.Acked(
    txn=str(TXN),
    branch=2,
    token=11,
    incarnation=7,
    acks=[
        pending_acks.AckDocument(position="4:2"),
        pending_acks.AckDocument(position="4:3", size=5, indexes=[0, 4], cumulative=True),
    ],
    processed=pending_acks.ProcessedDocument(query="q", batch=8, start="4:-1", end="4:9", epoch=2),
)
PENDING_ACKS: list[Any] = [
    ACKED,
    pending_acks.Withdrawn(txn=str(TXN), token=12),
    pending_acks.Settled(txn=str(TXN), upto="4:9"),
    pending_acks.Base(ledger=4, held=[pending_acks.HeldDocument(entry="3:1", acked=ACKED)]),
]
STATE = TopicState(
    AT,
    {TXN: OpenTransaction(Position(4, 1), {0: Position(4, 5), 2: Position(4, 6)})},
    {EARLIER: Marker(EARLIER, frozenset({0, 1}))},
    {BRANCH: ABORTED},
    {Position(4, 8): Branch(EARLIER, 1)},
)
SNAPSHOT = snapshot_of(STATE, [SegmentReference(at="1:5", upto="3:9", last_ledger=3)], STATE.aborted.items())
SWITCH = SwitchDocument(enabled=True, switched_ms=NOW_MS)
SWITCH_KEY = Key("/log-batching/transactions/3/")


def with_number_at(at: int) -> Callable[[bytes, int], bytes]:
    """Return how an entry gets another version, of two bytes at this place."""
    return lambda data, version: data[:at] + struct.pack(">H", version) + data[at + 2 :]


def log_entry(name: str, records: list[Any], module: Any) -> StoredSample:
    """Return the sample of an entry of a log with these records: alone, or as a batch."""
    encoded = [module.encode(one) for one in records]

    def read(data: bytes) -> list[Any]:
        found = decode_entry(LedgerEntry(AT, data), LOG)
        return [module.decode(LogRecord(RecordPosition(AT), one), LOG) for one in found]

    return StoredSample(
        f"{name}.bin",
        log_format.VERSION,
        records,
        lambda: encode_plain(encoded[0]) if len(encoded) == 1 else encode_batch(encoded),
        read,
        refused_as=f"entry {AT} of log {LOG}",
        with_version=with_number_at(2),
    )


def parts(data: bytes) -> list[LedgerEntry]:
    """Return the entry of a document that has one part."""
    return [LedgerEntry(AT, data)]


def document(name: str, value: Any, read: Callable[[bytes], Any], found: Any) -> StoredSample:
    """Return the sample of a document in a ledger."""
    return StoredSample(
        f"{name}.bin",
        documents.FORMAT,
        found,
        lambda: documents.encode(value, 10_000)[0],
        read,
        refused_as=f"entry {AT} of {LOG}",
        with_version=with_number_at(4),
    )


def read_snapshot(data: bytes) -> tuple[Snapshot, TopicState]:
    """Return a snapshot, and the state that follows from it."""
    found = decode_document(parts(data), LOG, Snapshot)
    return found, state_of(found, {})


def with_marker_format(data: bytes, version: int) -> bytes:
    """Return a marker with this format, which format 1 does not store."""
    if version == markers.FORMAT:
        return data
    view = EntryView(data)
    value = msgspec.json.encode({"format": version, "state": "FROZEN"})
    return encode_entry([EntryMessage(None, value, (), 0, NOW_MS)], view.producer, view.branch)


def marker(name: str, state: State, branches: frozenset[int] | None) -> StoredSample:
    """Return the sample of a marker."""
    ended = Transaction(TXN, state, NOW_MS, NOW_MS, branches=branches)
    return StoredSample(
        f"{name}.bin",
        markers.FORMAT,
        Marker(TXN, branches or frozenset()),
        lambda: marker_of(ended, NOW_MS).data,
        lambda data: read_entry(LedgerEntry(AT, data), TOPIC),
        refused_as=f"the marker of transaction {TXN} at {AT} of {TOPIC}",
        with_version=with_marker_format,
    )


PLACES = {
    "ledgers": [ledger_name(kind, TOPIC, 2, "a/b") for kind in KINDS],
    "switches": [str(switches.switches_range(kind).start) for kind in LogKind],
    "marker branch": MARKER_BRANCH,
}
SAMPLED = [
    log_entry("transaction_records", TRANSACTIONS, transactions),
    log_entry("transaction_record_alone", TRANSACTIONS[:1], transactions),
    log_entry("pending_ack_records", PENDING_ACKS, pending_acks),
    document("snapshot", SNAPSHOT, read_snapshot, (SNAPSHOT, STATE)),
    document(
        "aborted_segment",
        AbortedSegment(aborted=documents_of(STATE.aborted.items())),
        lambda data: decode_segment(parts(data), LOG),
        {BRANCH: ABORTED},
    ),
    marker("marker_committed", State.COMMITTED, frozenset({0, 2})),
    marker("marker_aborted", State.ABORTED, None),
    StoredSample(
        "switch.json",
        SWITCH.format,
        SWITCH,
        lambda: encode(SWITCH),
        lambda data: decode(SwitchDocument, Record(SWITCH_KEY, data, 1)),
        refused_as=f"record {SWITCH_KEY.path}",
    ),
    StoredSample(
        "places.json", 1, PLACES, lambda: msgspec.json.format(msgspec.json.encode(PLACES)), msgspec.json.decode
    ),
]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, SAMPLED)


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, SAMPLED)


def test_later_versions() -> None:
    """An unknown version is refused by name, and each version check has a sample."""
    check_refused(SAMPLED, "txnframework_legacy")


def test_every_record_has_a_sample() -> None:
    """Every kind of record of both logs has a sample."""
    for module, sampled in ((transactions, TRANSACTIONS), (pending_acks, PENDING_ACKS)):
        assert {type(one) for one in sampled} == set(module.AnyRecord.__args__)
