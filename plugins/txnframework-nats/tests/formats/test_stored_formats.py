"""What the streams hold: this release reads what earlier ones wrote, and writes other bytes only in a new version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from txnframework.environment import SystemEnvironment
from txnframework.model import Branch, Expect, IndexEntry, Key, Position, Put, Record, TxnID
from txnframework.model.paths import lease_key
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_nats.ledgers import _installation, _records, _snapshots
from txnframework_nats.ledgers._records import Numbering, decode, encode, frame, unframe
from txnframework_nats.ledgers._shard import Named, Shard
from txnframework_nats.ledgers._state import LedgerState, LedgerTotals, RecordMark
from txnframework_nats.ledgers._windows import SequenceCopy, SequenceWindow
from txnframework_nats.records import _layout, _sessions, _stream
from txnframework_nats.records._layout import Content, Layout, encode_delete, encode_put
from txnframework_nats.records._layout import decode as decode_record
from txnframework_nats.records._sessions import LeaseDocument, SessionTable, decode_lease, encode_heartbeat

SAMPLES = Path(__file__).parent / "samples"
NOW_MS = 1_700_000_000_000
LOG = "orders"
TXN = TxnID(3, 77)
TOKEN = b"12345678"
NUMBERING = Numbering(1_000, 4)
SHARD = Shard(cast(Any, None), "txn", 1)
INSTALLATION = _installation.Installation(cast(Any, None), "txn")
ADDED = _records.Added(
    token=TOKEN,
    first=7,
    messages_before=12,
    appended_ms=NOW_MS,
    sizes=(3, 4),
    messages=(1, 5),
    producers=("printer",),
    origins=(_records.Origin(0, str(TXN), 2, 0, 5, 9), _records.Origin(1)),
    closes=True,
    into=1_004,
    times=(NOW_MS, NOW_MS + 1),
)
CONTENTS: list[_records.LogRecord] = [
    _records.Asked(TOKEN, 50),
    _records.Created(TOKEN, LOG, NUMBERING),
    _records.Imported(TOKEN, LOG, NUMBERING, (_records.ImportedLedger(4, 2, NOW_MS),), False, (1, 0, 3, 9)),
    ADDED,
    _records.Remembered(TOKEN, ("printer",), (_records.RememberedCopy(0, 5, 9, 4, 1, str(TXN), 2, NOW_MS),)),
    _records.Rolled(TOKEN),
    _records.Sealed(TOKEN),
    _records.Forgotten(TOKEN, 4, ((str(TXN), 2),)),
    _records.Trimmed(TOKEN, 4, ((str(TXN), 2),), ("printer",)),
    _records.Deleted(TOKEN),
]
HEARTBEAT = encode_heartbeat(9_000)
LEASE = LeaseDocument(holder="host-1", session="s-1", life="s-1.2")
LEASE_KEY = lease_key("transactions/3")
PUT = Put(Key("/a/b", "p"), b"value", Expect.ANY, (IndexEntry("by-time", b"\x00\xff"),))
LAYOUT = Layout("txn")
UNKNOWN = _records.FORGETTING_FORMAT + 1


def with_first_byte(data: bytes, version: int) -> bytes:
    """Return a message of a ledger with another version; a reader refuses it before it looks at the checksum."""
    return bytes((version,)) + data[1:]


def framed(name: str, value: object, encoded: bytes, read: Callable[[bytes], object], what: str) -> StoredSample:
    """Return the sample of a message of a ledger."""
    return StoredSample(
        f"{name}.bin",
        encoded[0],
        value,
        lambda: encoded,
        read,
        refused_as=what,
        with_version=with_first_byte,
        unknown=UNKNOWN,
    )


def log_record(content: _records.LogRecord) -> StoredSample:
    """Return the sample of a record of a log."""
    data = b"onefour" if content is ADDED else b""

    def read(message: bytes) -> object:
        found = decode(8, 7, message, LOG)
        return found.content, found.data

    name = f"log_{type(content).__name__.lower()}"
    return framed(name, (content, data), encode(content, data), read, f"message 8 of the log of {LOG}")


def ledger_state() -> LedgerState:
    """Return a state with every field that a snapshot stores."""
    found = LedgerState(100)
    found.name, found.numbering, found.number, found.sealed = LOG, NUMBERING, 8, True
    found.before, found.trimmed = Position(3, 9), (Position(1, 0), Position(3, 9))
    totals = LedgerTotals(1_004, NOW_MS, 5, 2)
    totals.entries, totals.messages, totals.bytes, totals.last_number, totals.stride = 2, 6, 7, 8, 2
    totals.places = [RecordMark(0, 0, NOW_MS, 8)]
    found.ledgers = [totals]
    copies = [
        SequenceCopy(1, 4, Position(1_004, 0)),
        SequenceCopy(5, 9, Position(1_004, 1), Branch(TXN, 2)),
    ]
    found.windows = {"printer": SequenceWindow(copies, NOW_MS)}
    return found


def fields(state: LedgerState) -> dict[str, Any]:
    """Return all fields of a state, to be compared."""
    return {
        **vars(state),
        "ledgers": [vars(one) for one in state.ledgers],
        "windows": {producer: (one.appended_ms, one.copies) for producer, one in state.windows.items()},
    }


def with_document(other: Callable[[int, list[Any]], list[Any]]) -> Callable[[bytes, int], bytes]:
    """Return how the message of a record gets another version."""

    def change(data: bytes, version: int) -> bytes:
        found = msgspec.msgpack.decode(data)
        return data if found[0] == version else msgspec.msgpack.encode(other(version, found))

    return change


def record(name: str, value: bytes | None, refused_as: str, change: Any) -> StoredSample:
    """Return the sample of the message of a record."""
    place = _layout.record_id(PUT.key)
    return StoredSample(
        f"{name}.bin",
        _layout.FORMAT,
        Content(place, frozenset(() if value is None else PUT.indexes), value),
        lambda: encode_delete(place) if value is None else encode_put(place, PUT),
        lambda data: decode_record("a-subject", data),
        refused_as=refused_as,
        with_version=change,
    )


def with_other_fields(data: bytes, version: int) -> bytes:
    """Return the data, or a JSON object of a later version with other fields."""
    same = msgspec.json.decode(data)["format"] == version
    return data if same else msgspec.json.encode({"format": version, "other": "fields"})


def read_heartbeat(data: bytes) -> int | None:
    """Return for how long a heartbeat counts."""
    table = SessionTable(SystemEnvironment())
    table.observe("s-1.2", 1, data)
    found = table.get("s-1.2")
    assert found is not None
    return found.ttl_ms


def store(name: str, version: int, value: Any) -> StoredSample:
    """Return the sample of the message that describes the store of records."""
    return StoredSample(
        f"{name}.json",
        version,
        value,
        lambda: msgspec.json.encode(value),
        lambda data: _stream._decode_store(_stream.LastMessage(1, data, b"")),
        refused_as="the store",
        unknown=_stream.SKIPPING_FORMAT + 1,
    )


def heartbeat(name: str, encoded: bytes, ttl_ms: int | None) -> StoredSample:
    """Return the sample of the message of a session."""
    return StoredSample(
        f"{name}.json",
        _sessions.SESSION_FORMAT,
        ttl_ms,
        lambda: encoded,
        read_heartbeat,
        refused_as="session s-1.2",
        with_version=with_other_fields,
    )


ROOT = _installation._Root("store-a", 4, True, 1_000)
PLACES = {
    "record": LAYOUT.record(_layout.record_id(PUT.key)),
    "record with unusual text": LAYOUT.record(_layout.record_id(Key("/topic/caf\u00e9 .\x01/A_B"))),
    "long record": LAYOUT.record(_layout.record_id(Key("/" + "a" * 400))),
    "identity": LAYOUT.identity,
    "numbers": LAYOUT.numbers,
    "session": LAYOUT.session("s-1.2"),
    "ledgers": msgspec.to_builtins(SHARD.subjects("l-1")),
    "name": SHARD.name_draft(LOG, "l-1").subject,
    "transaction numbers": SHARD.numbers(3),
    "root": SHARD.root,
    "streams": [LAYOUT.stream, SHARD.stream],
}
SAMPLED = [
    *map(log_record, CONTENTS),
    framed("piece", b"piece", frame(b"piece"), lambda data: unframe(data, "a piece"), "a piece"),
    framed(
        "name",
        Named(LOG, "l-1"),
        SHARD.name_draft(LOG, "l-1").data,
        SHARD._decode,
        "a name in stream txn-ledgers-1",
    ),
    framed(
        "root", ROOT, frame(msgspec.msgpack.encode(ROOT)), INSTALLATION._decode, "the description of the ledgers in txn"
    ),
    framed(
        "snapshot",
        fields(ledger_state()),
        frame(_snapshots.encode_state(ledger_state())),
        lambda data: fields(_snapshots.decode_state(unframe(data, "a snapshot"), 100, LOG)),
        "a snapshot",
    ),
    record("record", b"value", "record /a/b", with_document(lambda new, old: [new, *old[1:]])),
    record("record_deleted", None, "record at a-subject", with_document(lambda new, _: [new, "other"])),
    store("store", _stream.STORE_FORMAT, _stream._Store(_stream.STORE_FORMAT, "store-a")),
    store("store_with_numbers", _stream.SKIPPING_FORMAT, _stream._Store(_stream.SKIPPING_FORMAT, "store-a", 7_000)),
    heartbeat("heartbeat", encode_heartbeat(9_000), 9_000),
    heartbeat("heartbeat_of_an_ended_session", encode_heartbeat(9_000, is_ended=True), None),
    StoredSample(
        "lease.json",
        _sessions.LEASE_FORMAT,
        LEASE,
        lambda: msgspec.json.encode(LEASE),
        lambda data: decode_lease(Record(LEASE_KEY, data, 1)),
        refused_as=LEASE_KEY.path,
        with_version=with_other_fields,
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
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused(SAMPLED, "txnframework_nats")


def test_every_record_has_a_sample() -> None:
    """Every kind of record of a ledger's log has a sample."""
    assert {type(one) for one in CONTENTS} == set(_records.LogRecord.__args__)
