"""What releases store: this one reads what earlier ones wrote, and writes other bytes only with a higher version."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from txnframework.config import load_config
from txnframework.model import Branch, Key, Position, SegmentName, TopicName, TxnID, index_keys, paths
from txnframework.model import document as document_module
from txnframework.model import indexes as index_module
from txnframework.model.compacted import VERSION as COMPACTED_VERSION
from txnframework.model.compacted import CompactedEntry, decode_compacted, encode_compacted
from txnframework.model.document import CO_COMMIT_FORMAT, FORMAT, MIGRATION_FORMAT
from txnframework.model.entries import (
    BinaryColumn,
    EntryColumns,
    EntryMessage,
    EntryView,
    HeaderColumns,
    encode_columns,
    encode_entry,
)
from txnframework.model.entry_view import VERSION, VERSION_WITH_NULLS
from txnframework.model.indexes import abort_indexes, subscription_indexes
from txnframework.model.key_hashes import key_hash, keyless_hash
from txnframework.model.metadata import Record
from txnframework.model.records import (
    AbortRecord,
    AckDocument,
    AckOperation,
    ApplicationOperation,
    ApplicationRecord,
    CommittedBatchDocument,
    CompactedRecord,
    CopiedRecord,
    CopyRecord,
    CursorRecord,
    DeliveryCountsRecord,
    Document,
    HistoryDocument,
    IdBlock,
    Operation,
    ProcessedRangeDocument,
    RegistrationDocument,
    RestoreRecord,
    SegmentDocument,
    SourceRangeDocument,
    SubscriptionRecord,
    TopicRecord,
    TransactionHeader,
    TrimmedRecord,
    WriteOperation,
    decode,
    decode_operation,
    encode,
)
from txnframework.model.topic_migration import MigrationDocument, OriginDocument
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written

SAMPLES = Path(__file__).parent / "samples"
TXN = TxnID(3, 77)
TOPIC = TopicName.parse("topic://public/default/orders")
SEGMENT = "segment://public/default/orders/0000-7fff-1"
PERSISTENT_TOPIC = "persistent://public/default/orders"
NOW_MS = 1_700_000_000_000


def stored(name: str, document: Document, place: Key) -> StoredSample:
    """Return the sample of a document."""
    is_operation = isinstance(document, Operation)

    def read(data: bytes) -> object:
        record = Record(place, data, 1)
        return decode_operation(record) if is_operation else decode(type(document), record)

    return StoredSample(
        f"{name}.json", document.format, document, lambda: encode(document), read, refused_as=f"record {place.path}"
    )


RANGE = SourceRangeDocument(topic=str(TOPIC), subscription="billing", start={SEGMENT: "4:-1"}, end={SEGMENT: "4:9"})
SEGMENTS = [
    SegmentDocument(id=0, start=0, end=0xFFFF, state="replaced", children=[1, 2]),
    SegmentDocument(id=1, start=0, end=0x7FFF, state="active", parents=[0]),
    SegmentDocument(id=2, start=0x8000, end=0xFFFF, state="planned", parents=[0]),
]
DOCUMENTS = [
    stored(
        "header_open",
        TransactionHeader(state="OPEN", timeout_ms=NOW_MS + 60_000, created_ms=NOW_MS, principal="ada", session="s-1"),
        paths.header_key(TXN),
    ),
    stored(
        "header_committed",
        TransactionHeader(
            state="COMMITTED", timeout_ms=NOW_MS + 60_000, created_ms=NOW_MS, finalized_ms=NOW_MS + 5, branches=[0, 2]
        ),
        paths.header_key(TXN),
    ),
    stored(
        "header_co_commit",
        TransactionHeader(
            format=CO_COMMIT_FORMAT, state="OPEN", timeout_ms=NOW_MS + 60_000, created_ms=NOW_MS, co_commit=True
        ),
        paths.header_key(TXN),
    ),
    stored(
        "operation_write",
        WriteOperation(branch=1, segment=SEGMENT, ledger=4, after="4:9"),
        Key(paths.operations_prefix(TXN).path + "00000000000000000007"),
    ),
    stored(
        "operation_ack",
        AckOperation(
            branch=1,
            segment=SEGMENT,
            subscription="billing",
            incarnation=7,
            acks=[AckDocument(position="4:2"), AckDocument(position="4:3", size=5, indexes=[0, 4])],
            cumulative=True,
            processed=ProcessedRangeDocument(query="q", batch=8, start="4:-1", end="4:9", epoch=2),
        ),
        Key(paths.operations_prefix(TXN).path + "00000000000000000008"),
    ),
    stored(
        "operation_application",
        ApplicationOperation(branch=0, application="invoices", run="r2", query="q", version=8, ranges=[RANGE]),
        Key(paths.operations_prefix(TXN).path + "00000000000000000009"),
    ),
    stored("abort", AbortRecord(after="4:9"), paths.abort_record_key(SEGMENT, 4, TXN, 1)),
    stored("trimmed", TrimmedRecord(ledger=4, at_ms=NOW_MS, collected=3), paths.trimmed_key(SEGMENT)),
    stored(
        "application",
        ApplicationRecord(
            run="r2",
            past_runs=["r1"],
            query="q",
            version=8,
            txn=str(TXN),
            committed=[CommittedBatchDocument(query="q", version=7, ranges=[RANGE])],
        ),
        paths.application_key("invoices"),
    ),
    stored(
        "subscription",
        SubscriptionRecord(
            epoch=2,
            token="t",
            registrations=[
                RegistrationDocument(
                    query="q",
                    run="r2",
                    batch=8,
                    epoch=2,
                    start={SEGMENT: "4:-1"},
                    end={SEGMENT: "4:9"},
                    incarnations={SEGMENT: 7},
                )
            ],
            history=[HistoryDocument(segment=SEGMENT, query="q", batch=7, start="3:-1", end="3:5")],
        ),
        paths.subscription_key(str(TOPIC), "billing"),
    ),
    stored(
        "cursor",
        CursorRecord(incarnation=7, mark_delete="4:2", deleted=["4:4+2 5 3", "5:0"], partial=["4:8/5 2/1"]),
        paths.cursor_key(SEGMENT, "billing"),
    ),
    stored(
        "cursor_tombstone",
        CursorRecord(incarnation=8, mark_delete="4:2", tombstone=True),
        paths.cursor_key(SEGMENT, "billing"),
    ),
    stored("subscription_deleted", SubscriptionRecord(deleted=True), paths.subscription_key(str(TOPIC), "billing")),
    stored(
        "topic_deleted",
        TopicRecord(epoch=4, next_id=3, segments=SEGMENTS, deleted=True),
        paths.topic_key(TOPIC),
    ),
    stored(
        "cursor_of_a_family",
        CursorRecord(incarnation=7, mark_delete="4:2", family="metadata"),
        paths.cursor_key(SEGMENT, "billing"),
    ),
    stored(
        "delivery_counts",
        DeliveryCountsRecord(incarnation=7, dispatch="d", counts={"4:3": 2}, handed_out=["4:4"], alone=True),
        paths.delivery_counts_key(SEGMENT, "billing"),
    ),
    stored(
        "delivery_counts_presumed",
        DeliveryCountsRecord(incarnation=7, dispatch="d", presumed={"c": "4:3"}),
        paths.delivery_counts_key(SEGMENT, "billing"),
    ),
    stored(
        "compacted",
        CompactedRecord(
            ledger="c-1", further=["c-2"], upto="4:9", compactor="keep-last", order="key", attempt=2, token="t"
        ),
        paths.compacted_key(SEGMENT),
    ),
    stored(
        "topic",
        TopicRecord(
            epoch=3,
            next_id=3,
            segments=SEGMENTS,
            subscriptions=["billing"],
            starting={"audit": {1: "4:9"}},
            life=2,
            last_ledger=4,
            families=["metadata"],
        ),
        paths.topic_key(TOPIC),
    ),
    stored(
        "topic_migration",
        TopicRecord(
            format=MIGRATION_FORMAT,
            epoch=3,
            next_id=1,
            segments=SEGMENTS[:1],
            migration=MigrationDocument(to=str(TOPIC), step="planned", at_ms=NOW_MS, recorded="4:9"),
            origin=OriginDocument(topic=PERSISTENT_TOPIC, life=1, last_ledger=4, families=["log"]),
            reserved_for=PERSISTENT_TOPIC,
        ),
        paths.topic_key(TOPIC),
    ),
    stored("ids", IdBlock(next=1_000), paths.ids_key(3)),
    stored("restore", RestoreRecord(ledgers="l", to="n", restored="m", forced=True, at_ms=NOW_MS), paths.restore_key()),
    stored("copy", CopyRecord(source="a", to="b", step="copying", upto="x", keep_source=True), paths.copy_key()),
    stored("copied", CopiedRecord(to="b", is_shared=True, is_finished=True), paths.copied_key()),
]

MESSAGES = (
    EntryMessage(b"ada", b"one", (("kind", b"invoice"), ("kind", b"")), 5, NOW_MS),
    EntryMessage(None, b"", (), 6, NOW_MS + 1),
    EntryMessage(b"", "zwölf".encode(), (("ü", b"\x00"),), 9, NOW_MS + 2),
)
WITH_NULL = (*MESSAGES[:2], EntryMessage(b"ada", None, (), 9, NOW_MS + 2))
AT = Position(4, 9)
BRANCH = Branch(TXN, 2)
Entry = tuple[tuple[EntryMessage, ...], str, Branch | None]


def read_entry(data: bytes) -> Entry:
    """Return what an entry holds."""
    view = EntryView(data, AT, SEGMENT)
    return tuple(view.messages()), view.producer, view.branch


def with_entry_version(data: bytes, version: int) -> bytes:
    """Return an entry with another version; a reader refuses it before it looks at the checksum."""
    return data[:4] + struct.pack("<H", version) + data[6:]


def entry(name: str, version: int, messages: tuple[EntryMessage, ...], branch: Branch | None) -> StoredSample:
    """Return the sample of an entry."""
    return StoredSample(
        f"{name}.bin",
        version,
        (messages, "printer", branch),
        lambda: encode_entry(messages, "printer", branch),
        read_entry,
        refused_as=f"entry {AT} of {SEGMENT}",
        with_version=with_entry_version,
        unknown=VERSION_WITH_NULLS + 1,
    )


COMPACTED = CompactedEntry(AT, 4, "printer", BRANCH, ((0, MESSAGES[0]), (3, MESSAGES[2])))
ENTRIES = [
    entry("entry_plain", VERSION, MESSAGES[1:2], None),
    entry("entry_of_a_branch", VERSION, MESSAGES, BRANCH),
    entry("entry_with_null", VERSION_WITH_NULLS, WITH_NULL, None),
    StoredSample(
        "entry_compacted.bin",
        COMPACTED_VERSION,
        COMPACTED,
        lambda: encode_compacted(COMPACTED),
        lambda data: decode_compacted(data, AT, "c-1"),
        refused_as=f"entry {AT} of c-1",
        with_version=lambda data, version: data[:4] + bytes((version,)) + data[5:],
    ),
]


def places() -> dict[str, Any]:
    """Return keys, index entries and hashes, by the name of the function that makes them."""
    aborted = abort_indexes(SEGMENT, 4, AbortRecord(after="4:9"))
    registered = subscription_indexes(DOCUMENTS_BY_NAME["subscription.json"])
    return {
        "keys": {name: (make(*arguments).path, make(*arguments).partition) for name, (make, arguments) in KEYS.items()},
        "index names": sorted(value for name, value in vars(index_module).items() if name.isupper()),
        "index entries": [(one.index, one.key.hex()) for one in (*aborted, *registered)],
        "index key": index_keys.encode("a\x00b", 300, b"\xff").hex(),
        "escaped": paths.escape("a/b c%.\u00fc"),
        "compacted ledger": paths.compacted_ledger_name(SEGMENT, 2, "p"),
        "segment": str(SegmentName.parse(SEGMENT)),
        "hash of a key": key_hash(b"ada"),
        "hash without a key": keyless_hash("printer", 5),
    }


KEYS: dict[str, tuple[Callable[..., Key], tuple[Any, ...]]] = {
    "header_key": (paths.header_key, (TXN,)),
    "operations_prefix": (paths.operations_prefix, (TXN,)),
    "abort_record_key": (paths.abort_record_key, (SEGMENT, 4, TXN, 1)),
    "trimmed_key": (paths.trimmed_key, (SEGMENT,)),
    "application_key": (paths.application_key, ("invoices",)),
    "subscription_key": (paths.subscription_key, (str(TOPIC), "billing")),
    "cursor_key": (paths.cursor_key, (SEGMENT, "billing")),
    "delivery_counts_key": (paths.delivery_counts_key, (SEGMENT, "billing")),
    "compacted_key": (paths.compacted_key, (SEGMENT,)),
    "topic_key": (paths.topic_key, (TOPIC,)),
    "ids_key": (paths.ids_key, (3,)),
    "restore_key": (paths.restore_key, ()),
    "copy_key": (paths.copy_key, ()),
    "copied_key": (paths.copied_key, ()),
    "lease_key": (paths.lease_key, ("transactions/3",)),
}
DOCUMENTS_BY_NAME: dict[str, Any] = {sample.name: sample.value for sample in DOCUMENTS}
CONFIGURATION = """\
[metadata]
url = "sqlite:///data/txn.db"

[ledger]
url = "nats://user@host/txn"

[transactions]
timeout_ms = 5_000

[domains.persistent]
coordinator = "log"
buffer = "sidecar"

[namespaces."a/b".segment]
coordinator = "metadata"
"""


def all_samples() -> list[StoredSample]:
    """Return every sample of the core."""
    made = places()
    config = load_config(msgspec.toml.decode(CONFIGURATION))
    return [
        *DOCUMENTS,
        *ENTRIES,
        # Keys and index entries change with the format of the documents.
        StoredSample(
            "places.json",
            FORMAT,
            msgspec.json.decode(msgspec.json.encode(made)),
            lambda: msgspec.json.format(msgspec.json.encode(made)),
            msgspec.json.decode,
        ),
        StoredSample(
            "configuration.toml", 1, config, CONFIGURATION.encode, lambda data: load_config(msgspec.toml.decode(data))
        ),
    ]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, all_samples())


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, all_samples())


def test_later_versions() -> None:
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused([*all_samples(), MISFIT], "txnframework")


MISFIT = StoredSample(
    "header_with_a_format_that_does_not_fit.json",
    FORMAT,
    None,
    lambda: encode(DOCUMENTS_BY_NAME["header_open.json"]),
    lambda data: decode(TransactionHeader, Record(paths.header_key(TXN), data, 1)),
    refused_as=f"record {paths.header_key(TXN).path}",
    unknown=CO_COMMIT_FORMAT,
)


def test_columns_are_written_as_messages_are() -> None:
    """An entry of columns has the same bytes as one of the same messages."""
    columns = EntryColumns(
        count=3,
        values=BinaryColumn(array("i", [0, 3, 3, 9]).tobytes(), "onezwölf".encode()),
        sequence_ids=array("q", [5, 6, 9]).tobytes(),
        published_ms=array("q", [NOW_MS, NOW_MS + 1, NOW_MS + 2]).tobytes(),
        keys=BinaryColumn(array("i", [0, 3, 3, 3]).tobytes(), b"ada"),
        keys_validity=bytes((0b101,)),
        headers=HeaderColumns(
            array("i", [0, 2, 2, 3]).tobytes(),
            BinaryColumn(array("i", [0, 4, 8, 10]).tobytes(), "kindkindü".encode()),
            BinaryColumn(array("i", [0, 7, 7, 8]).tobytes(), b"invoice\x00"),
        ),
    )
    assert encode_columns(columns, "printer", BRANCH) == (SAMPLES / f"entry_of_a_branch.{VERSION}.bin").read_bytes()


def leaves(kind: type[Document]) -> Iterator[type[Document]]:
    """Yield the kinds of documents of the core without kinds of their own."""
    below = kind.__subclasses__()
    for one in below:
        yield from leaves(one)
    if not below and kind.__module__.startswith("txnframework.model."):
        yield kind


def test_every_kind_has_a_sample() -> None:
    """Every kind of document has a sample, every format of documents, and every index and every key."""
    values = [sample.value for sample in DOCUMENTS]
    assert {type(value) for value in values} == set(leaves(Document))
    formats = {value for name, value in vars(document_module).items() if name.endswith("FORMAT")}
    assert {sample.version for sample in DOCUMENTS} == formats
    assert set(KEYS) == {name for name in vars(paths) if name.endswith("_key")} | {"operations_prefix"}


@pytest.mark.parametrize("sample", DOCUMENTS, ids=lambda sample: sample.name)
def test_every_field_is_in_a_sample(sample: StoredSample) -> None:
    """The samples of a kind have, together, no field that still has its default: each is written and read."""
    kind = type(sample.value)
    values = [one.value for one in DOCUMENTS if type(one.value) is kind]
    defaults = {
        field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
        if not field.required and field.name != "format"
    }
    never = [name for name, default in defaults.items() if all(getattr(one, name) == default for one in values)]
    assert not never
