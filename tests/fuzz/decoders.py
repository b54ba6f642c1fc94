"""Every decoder of what was stored, sent or typed: valid examples of its input, and the errors that it may raise."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from txnframework.client import Message, MessageID
from txnframework.client._messages import with_content
from txnframework.config import load_config
from txnframework.errors import TxnFrameworkError
from txnframework.model import (
    Append,
    Branch,
    IndexEntry,
    Key,
    LedgerEntry,
    Position,
    Record,
    TxnID,
    cursor,
    index_keys,
    layout,
    paths,
    records,
)
from txnframework.model.compacted import CompactedEntry, decode_compacted, encode_compacted
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.entry_view import CRC, HAS_NULLS, HEADER, MAGIC, VERSION, VERSION_WITH_NULLS
from txnframework.model.indexes import abort_indexes, subscription_indexes
from txnframework.model.names import parse_name
from txnframework.model.topic_migration import MigrationDocument, OriginDocument
from txnframework.model.transactions import State, Transaction
from txnframework.serializers import SCHEMA_HEADER, MsgspecJson, MsgspecMessagePack, PlainJson, PlainText, PydanticJson
from txnframework_example import _format as example
from txnframework_legacy.buffer import documents, snapshot_format
from txnframework_legacy.buffer.markers import marker_of
from txnframework_legacy.buffer.markers import read_entry as read_marked
from txnframework_legacy.coordinator import records as log_records
from txnframework_legacy.log import LogRecord
from txnframework_legacy.log.format import RecordPosition, decode_entry, encode_batch, encode_plain
from txnframework_legacy.pending_acks import records as ack_records
from txnframework_sidecar import compacted as compacted_sidecars
from txnframework_sidecar import markers as sidecar_markers
from txnframework_sidecar import snapshots as sidecar_snapshots
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import MessageRun, Part, Span
from txnframework_sidecar.state import CommitMarkers, SidecarState, TopicState
from txnframework_simulation import history
from txnframework_sql.postgresql._payloads import changes_of, payloads
from txnframework_sql.steps.records import decode_indexes, encode_indexes
from txnframework_sql.steps.statements import LedgerChange, RecordChange
from txnframework_zookeeper import _root as zookeeper_root
from txnframework_zookeeper.connection._requests import Node, Stat
from txnframework_zookeeper.tree._records import decode_node, encode_node

AT = Position(3, 7)
TXN = TxnID(1, 42)
LOG_FAMILY_ID = 1 << 15
SEGMENT = "segment://public/default/orders/0000-ffff-0"


@dataclass(frozen=True, slots=True)
class Decoder:
    """``decode`` takes any bytes and returns what they say, or raises one of ``errors``; ``examples`` are accepted.

    ``encode``, of an accepted value, gives bytes that say the same. ``repair`` makes hostile bytes pass the checks that
    come first (magic, sizes, checksum), so that later ones are reached.
    """

    name: str
    decode: Callable[[bytes], object]
    examples: tuple[bytes, ...]
    encode: Callable[[object], bytes] | None = None
    errors: tuple[type[Exception], ...] = (TxnFrameworkError,)
    repair: Callable[[bytes], bytes] | None = None

    def __str__(self) -> str:
        return self.name


def messages() -> tuple[EntryMessage, ...]:
    """Return messages with everything that a message may have."""
    return (
        EntryMessage(b"key", b"value", (("name", b"content"), ("", b"")), 4, 1_000),
        EntryMessage(None, b"", (), 6, 1_001),
        EntryMessage(b"", b"\xff" * 40, (("ключ", b"\x00"),), 9, 1_002),
    )


def nulls() -> tuple[EntryMessage, ...]:
    """Return messages of which some have a null for a value."""
    return (*messages(), EntryMessage(b"key", None, (("name", b""),), 12, 1_003), EntryMessage(None, None, (), 13, 0))


def read_entry(data: bytes) -> object:
    """Return everything that an entry says."""
    view = EntryView(data, AT, SEGMENT)
    view.columns()
    return view.branch, view.producer, tuple(view.messages())


def resealed(data: bytes) -> bytes:
    """Return an entry whose size and checksum are right again, whatever else is wrong in it."""
    entry = bytearray(data.ljust(HEADER.size, b"\x00"))
    flags = entry[6] & 15
    version = VERSION_WITH_NULLS if flags & HAS_NULLS else VERSION
    entry[: CRC.start] = MAGIC + version.to_bytes(2, "little") + bytes((flags, 0))
    entry[CRC.stop : CRC.stop + 4] = len(entry).to_bytes(4, "little")
    entry[CRC] = zlib.crc32(entry[CRC.stop :], zlib.crc32(entry[: CRC.start])).to_bytes(4, "little")
    return bytes(entry)


def _document(kind: type, data: bytes) -> object:
    """Return a document, after everything that is made of it was made."""
    document = records.decode(kind, Record(Key(f"/{kind.__name__}"), data, 1))
    if isinstance(document, records.CursorRecord):
        cursor.from_record(document)
    elif isinstance(document, records.TopicRecord):
        layout.from_record(parse_name("orders").topic, document)
    elif isinstance(document, records.AbortRecord):
        abort_indexes(SEGMENT, AT.ledger_id, document)
    elif isinstance(document, records.SubscriptionRecord):
        subscription_indexes(document)
    return document


def _documents() -> tuple[tuple[type, records.Document], ...]:
    at, until = "3:7", "3:9:1"
    processed = records.ProcessedRangeDocument(query="q", batch=3, start=at, end=until, epoch=1)
    source = records.SourceRangeDocument(topic="t", subscription="s", start={SEGMENT: at}, end={SEGMENT: until})
    registration = records.RegistrationDocument(
        query="q", run="r", batch=1, epoch=2, start={SEGMENT: at}, end={SEGMENT: until}, incarnations={SEGMENT: 1}
    )
    history = records.HistoryDocument(segment=SEGMENT, query="q", batch=1, start=at, end=until)
    segment = records.SegmentDocument(id=0, start=0, end=0xFFFF, state="active", children=[1])
    ack = records.AckDocument(position=at, size=3, indexes=[0, 2])
    return tuple(
        (type(document), document)
        for document in (
            records.TransactionHeader(
                format=records.CO_COMMIT_FORMAT, state="OPEN", timeout_ms=5, created_ms=1, co_commit=True
            ),
            records.TransactionHeader(state="COMMITTED", timeout_ms=5, created_ms=1, finalized_ms=3, branches=[0, 9]),
            records.WriteOperation(branch=0, segment=SEGMENT, ledger=3, after=at),
            records.AckOperation(
                branch=1, segment=SEGMENT, subscription="s", incarnation=1, acks=[ack], processed=processed
            ),
            records.ApplicationOperation(branch=0, application="a", run="r", query="q", version=2, ranges=[source]),
            records.AbortRecord(after=at),
            records.TrimmedRecord(ledger=3, at_ms=4, collected=2),
            records.ApplicationRecord(
                run="r",
                past_runs=["p"],
                txn=str(TXN),
                committed=[records.CommittedBatchDocument(query="q", version=1, ranges=[source])],
            ),
            records.SubscriptionRecord(epoch=1, token="t", registrations=[registration], history=[history]),
            records.CursorRecord(incarnation=1, mark_delete=at, deleted=["3:9+3 4", "4:0"], partial=["3:14/9 2/1"]),
            records.DeliveryCountsRecord(incarnation=1, dispatch="d", counts={until: 2}, handed_out=[until]),
            records.CompactedRecord(ledger="l", upto=until, attempt=3, token="t"),
            records.TopicRecord(epoch=1, next_id=2, segments=[segment], starting={"s": {0: at}}, families=["log"]),
            records.TopicRecord(
                format=records.MIGRATION_FORMAT,
                epoch=1,
                next_id=2,
                segments=[segment],
                migration=MigrationDocument(to="topic://a/b/c", step="planned", at_ms=3, recorded=at),
                origin=OriginDocument(topic="persistent://a/b/c", life=1, last_ledger=3, families=["log"]),
                reserved_for="persistent://a/b/c",
            ),
            records.CursorRecord(incarnation=1, mark_delete=at, family="metadata"),
            records.IdBlock(next=4_096),
            records.RestoreRecord(ledgers="a", to="b", at_ms=3),
            records.CopyRecord(source="a", to="b", step="copying", upto="c"),
            records.CopiedRecord(to="b", is_shared=True),
        )
    )


def _entry(decode: Callable[[LedgerEntry], object], data: bytes) -> object:
    return decode(LedgerEntry(AT, data))


def _log_family() -> tuple[Decoder, ...]:
    """Return the decoders of what a topic with markers holds beside its messages."""
    logged = TxnID(LOG_FAMILY_ID, 7)
    committed = Transaction(logged, State.COMMITTED, 5, 1, 3, branches=frozenset({0, 9}))
    aborted = Transaction(logged, State.ABORTED, 5, 1, 3)
    branch = f"{logged}:0"
    snapshot = snapshot_format.Snapshot(
        upto="3:9",
        writing={str(logged): snapshot_format.WritingDocument(first="3:7", branches={"0": "3:8"})},
        marked={str(logged): [0, 9]},
        segments=[snapshot_format.SegmentReference(at="0:1", upto="3:2", last_ledger=2)],
        aborted=[(branch, "3:7", "3:8")],
        late={"3:8": branch},
    )
    segment = snapshot_format.AbortedSegment(aborted=[(branch, "3:7", "3:8")])

    def state(data: bytes) -> object:
        found = documents.decode_document([LedgerEntry(AT, data)], "snapshots", snapshot_format.Snapshot)
        return snapshot_format.state_of(found, {})

    return (
        Decoder(
            "marker",
            partial(_entry, lambda entry: read_marked(entry, SEGMENT)),
            tuple(marker_of(ended, 1_000).data for ended in (committed, aborted)),
            errors=(TxnFrameworkError, ValueError),
            repair=resealed,
        ),
        Decoder(
            "snapshot of a topic",
            state,
            tuple(documents.encode(snapshot, 1 << 20)),
            errors=(TxnFrameworkError, ValueError),
        ),
        Decoder(
            "segment of aborted branches",
            lambda data: snapshot_format.decode_segment([LedgerEntry(AT, data)], "segments"),
            tuple(documents.encode(segment, 1 << 20)),
        ),
    )


def _sidecar() -> tuple[Decoder, ...]:
    """Return the decoders of what a topic with a sidecar holds, and what stands beside it."""
    written = TxnID(LOG_FAMILY_ID, 7)
    part = Part(5, (Span(3, 7, 9), Span(4, 0, 0)), 12, 900)
    marker = sidecar_markers.Marker(written, 1, 2, part, AT, frozenset({0, 5}))
    note = sidecar_markers.Note(written, frozenset({5}), AT, None)
    entry = Append(encode_entry(messages(), "producer", Branch(written, 5)), len(messages()), Branch(written, 5))
    run = MessageRun(Span(3, 7, 7), 5, "producer", 4, 9, 3, 200, AT, AT)
    index = SidecarState(SidecarOptions(), AT, {written: [run]}, {written: note}, {Branch(written, 6): AT}, {})
    stream = TopicState(AT, {written: CommitMarkers(AT, frozenset({5}), AT)}, {AT}, {written: AT})
    compacted = compacted_sidecars.encode_runs([compacted_sidecars.CompactionRun(3, 9, AT, AT, 4)])
    line = compacted_sidecars.CompactedEntry(compacted_sidecars.EntryKind.DONE, 9, AT, compacted)

    def restored(data: bytes) -> object:
        document = documents.decode_document([LedgerEntry(AT, data)], "snapshots", sidecar_snapshots.Snapshot)
        sidecar_snapshots.restore(document, TopicState(), SidecarState(SidecarOptions()))
        return document

    def lined(entry: LedgerEntry) -> object:
        found = compacted_sidecars.decode_compacted(entry, "compacted")
        return compacted_sidecars.decode_runs(found.data, AT, "compacted")

    return (
        Decoder(
            "marker of a sidecar",
            partial(_entry, lambda entry: sidecar_markers.read_topic_entry(entry, SEGMENT)),
            (sidecar_markers.encode_marker(marker, 1_000).data,),
            errors=(TxnFrameworkError, ValueError),
            repair=resealed,
        ),
        Decoder(
            "entry of a sidecar",
            partial(_entry, lambda entry: sidecar_markers.read_sidecar_entry(entry, "sidecar")),
            (
                entry.data,
                sidecar_markers.encode_note(note, 1_000).data,
                sidecar_markers.encode_reference(entry, AT, 1_000).data,
            ),
            errors=(TxnFrameworkError, ValueError),
            repair=resealed,
        ),
        Decoder(
            "snapshot of a sidecar",
            restored,
            tuple(documents.encode(sidecar_snapshots.snapshot_of(stream, index), 1 << 20, "option")),
            errors=(TxnFrameworkError, ValueError),
        ),
        Decoder(
            "entry of a compacted sidecar", partial(_entry, lined), (compacted_sidecars.encode_compacted(line).data,)
        ),
    )


def _history(data: bytes) -> object:
    """Return the calls of a history, as they are put together from its lines."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        Path(file.name).write_bytes(data)
        return history.read(Path(file.name)).calls()


def _recorded() -> bytes:
    """Return a history in which everything is asked for that can be."""
    place = history.MessagePosition(SEGMENT, 3, 7, 2)
    seen = history.SeenMessage(place, "value", "key", str(TXN))
    found = history.History(about={"seed": "1"})
    recorder = history.Recorder(count(1).__next__, found.events.append)
    recorder.invoke("c", history.Begin()).ok(history.Begun(str(TXN)))
    recorder.invoke("c", history.Send("topic", "value", "key", str(TXN), 5, "p", 4)).ok(history.Sent(place))
    recorder.invoke("c", history.Read("topic", "r", whole=True)).ok(history.Received((seen,)))
    acknowledged = history.Acknowledge("s", "k", (history.AckedMessage(place, 1),), True, str(TXN))
    recorder.invoke("c", acknowledged).fail("refused", history.Outcome("ABORTED"))
    recorder.invoke("c", history.Commit(str(TXN), (5,))).unknown("the answer was lost")
    recorder.invoke("c", history.DrainTopic("topic")).ok(history.Drained((seen,), (place,)))
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        history.write(found, Path(file.name))
        return Path(file.name).read_bytes()


def _configuration(data: bytes) -> object:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        Path(file.name).write_bytes(data)
        return load_config(file.name)


def _text(decode: Callable[[str], object], data: bytes) -> object:
    return decode(data.decode("utf-8", "surrogateescape"))


def _names() -> tuple[Decoder, ...]:
    texts: tuple[tuple[str, Callable[[str], object], tuple[str, ...], tuple[type[Exception], ...]], ...] = (
        ("name", parse_name, ("orders", "persistent://a/b/c", SEGMENT), (TxnFrameworkError,)),
        ("position", Position.parse, ("3:7", "0:-1", "3:7:2"), (ValueError,)),
        ("transaction id", TxnID.parse, (str(TXN),), (ValueError,)),
        ("message id", MessageID.parse, (f"{SEGMENT}@3:7:2",), (TxnFrameworkError,)),
        ("path", paths.txn_id_of, (f"/txn/{TXN}", f"/txn-op/{TXN}/{5:020d}"), (TxnFrameworkError,)),
        ("path component", paths.unescape, ("orders", "%", "a%2Fb"), (ValueError,)),
    )
    spelled = {"name", "position", "transaction id", "message id"}
    return tuple(
        Decoder(
            name,
            partial(_text, decode),
            tuple(map(str.encode, examples)),
            (lambda value: str(value).encode()) if name in spelled else None,
            errors,
        )
        for name, decode, examples, errors in texts
    )


def _stored() -> tuple[Decoder, ...]:
    entry = encode_entry(messages(), "producer", Branch(TXN, 5))
    plain = encode_entry(messages()[1:2], "", None)
    kept = CompactedEntry(AT, 5, "producer", None, tuple(zip((0, 2, 4), messages(), strict=True)))
    return (
        Decoder(
            "entry",
            read_entry,
            (entry, plain, encode_entry(nulls(), "producer", Branch(TXN, 5))),
            lambda said: encode_entry(said[2], said[1], said[0]),  # type: ignore[index]
            errors=(TxnFrameworkError, ValueError),
            repair=resealed,
        ),
        Decoder(
            "compacted entry",
            lambda data: decode_compacted(data, AT, "ledger"),
            (encode_compacted(kept), encode_compacted(replace(kept, messages=tuple(enumerate(nulls()))))),
            encode_compacted,  # type: ignore[arg-type]
        ),
        *(
            Decoder(kind.__name__, partial(_document, kind), (records.encode(document),), records.encode)  # type: ignore[arg-type]
            for kind, document in _documents()
        ),
        Decoder(
            "index key",
            index_keys.decode,
            (index_keys.encode("OPEN", 12_345, b"\x00\x01"), index_keys.encode("")),
            lambda components: index_keys.encode(*components),  # type: ignore[misc]
            (ValueError,),
        ),
    )


def _plugins() -> tuple[Decoder, ...]:
    indexes = frozenset({IndexEntry("txn-by-deadline", b"\x30\x01\x05"), IndexEntry("x", b"")})
    notified = payloads([LedgerChange(7), RecordChange("/record", "/", indexes)])
    logged = tuple(
        log_records.encode(one)
        for one in (
            log_records.New(number=4, created_ms=1, deadline_ms=9),
            log_records.AddPartition(number=4, segments=["persistent://a/b/c"]),
            log_records.Update(number=4, expected="OPEN", state="COMMITTING", at_ms=3, branches=[0]),
            log_records.Forget(numbers=[4]),
        )
    )
    acked = ack_records.Acked(
        txn=str(TXN), branch=0, token=1, incarnation=1, acks=[ack_records.AckDocument(position="3:7", indexes=[1])]
    )
    held = ack_records.Base(ledger=3, held=[ack_records.HeldDocument(entry="3:7", acked=acked)])
    at = RecordPosition(AT)
    return (
        Decoder(
            "entry of a log",
            partial(_entry, lambda entry: decode_entry(entry, "log")),
            (encode_plain(b"record"), encode_batch((b"one", b"", b"three"))),
        ),
        Decoder(
            "record of a transaction log",
            lambda data: log_records.decode(LogRecord(at, data), "log"),
            logged,
            log_records.encode,  # type: ignore[arg-type]
        ),
        Decoder(
            "record of a pending-ack log",
            lambda data: ack_records.decode(LogRecord(at, data), "log"),
            tuple(map(ack_records.encode, (acked, held, ack_records.Settled(txn=str(TXN), upto="3:7")))),
            ack_records.encode,  # type: ignore[arg-type]
        ),
        Decoder(
            "node of ZooKeeper",
            lambda data: decode_node("/record", "", Node(data, Stat(*range(11)))),
            (encode_node(b"value", None, tuple((one.index, one.key, 0) for one in indexes), "token"),),
        ),
        Decoder(
            "root of ZooKeeper",
            lambda data: zookeeper_root._decode_store(Node(data, Stat(*range(11)))),
            (b'{"format":1,"identity":"i"}',),
        ),
        Decoder(
            "numbers of ZooKeeper",
            lambda data: zookeeper_root._decode_counter(Node(data, Stat(*range(11)))),
            (b"[1,4096]",),
        ),
        Decoder(
            "index entries in SQL",
            partial(_text, partial(decode_indexes, Key("/record"))),
            ((encode_indexes(indexes) or "").encode(),),
        ),
        Decoder(
            "notification of PostgreSQL",
            partial(_text, changes_of),
            (*(one.encode() for one in notified), b'[[4, 1, 7, "ZGF0YQ=="], ["/record", null, null, [], "{}"]]'),
        ),
        Decoder(
            "file of JSON lines",
            lambda data: example.decode(data, "file"),
            (example.encode(example.Head(identity="i"), [example.Change(path="/a", number=1, value=b"v")]),),
        ),
        Decoder(
            "configuration",
            _configuration,
            (b'[metadata]\nurl = "sqlite:///x.db"\n\n[namespaces."a/b".persistent]\nbuffer = "sidecar"\n', b""),
        ),
    )


class Order(msgspec.Struct):
    """A content, as a program defines it."""

    customer: str
    prices: dict[str, int] = {}
    notes: list[str] = []


def _contents() -> tuple[Decoder, ...]:
    """Return the decoders of contents of messages; each refuses with an error that shows nothing of the value."""
    orders = (Order("ada", {"apples": 1}, ["soon"]), Order("", {}))
    found: list[tuple[Any, tuple[bytes, ...]]] = []
    for serializer in (MsgspecJson(Order), MsgspecMessagePack(Order)):
        found.append((serializer, tuple(map(serializer.encode, orders))))
    if find_spec("pydantic"):
        found.append((PydanticJson(dict[str, list[int]]), (b'{"a":[1,2]}', b"{}")))
    found.append((PlainJson(), (b'{"a":[1,2.5,null]}', b"1")))
    found.append((PlainText(schema="text"), ("drei Äpfel".encode(), b"")))

    def content_of(serializer: Any, value: bytes) -> object:
        headers = {} if serializer.schema_id is None else {SCHEMA_HEADER: serializer.schema_id.encode()}
        raw: Message = Message("t", MessageID(SEGMENT, AT), None, value, headers, 0, "p", 0)
        return with_content(raw, serializer).content

    return tuple(Decoder(repr(one), partial(content_of, one), examples, one.encode) for one, examples in found)


DECODERS = (
    *_contents(),
    *_names(),
    *_stored(),
    *_plugins(),
    *_log_family(),
    *_sidecar(),
    Decoder("history", _history, (_recorded(),)),
)
