"""Documents of the metadata store: readable, versioned, and refused rather than guessed."""

from __future__ import annotations

import json

import pytest

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model.metadata import Key, Record
from txnframework.model.records import (
    CO_COMMIT_FORMAT,
    FORMAT,
    MIGRATION_FORMAT,
    AckDocument,
    AckOperation,
    ApplicationOperation,
    CursorRecord,
    TopicRecord,
    TransactionHeader,
    WriteOperation,
    decode,
    decode_operation,
    encode,
)

KEY = Key("/txn/00", "00")
HEADER = TransactionHeader(state="OPEN", timeout_ms=9, created_ms=1)


def stored(value: bytes) -> Record:
    return Record(KEY, value, 1)


def test_a_document_is_plain_json_with_its_format() -> None:
    assert json.loads(encode(HEADER))["format"] == FORMAT
    assert decode(TransactionHeader, stored(encode(HEADER))) == HEADER


@pytest.mark.parametrize(
    "operation",
    [
        WriteOperation(branch=2**63 - 1, segment="s", ledger=4, after="3:7"),
        AckOperation(branch=0, segment="s", subscription="b", incarnation=1, acks=[AckDocument(position="1:0")]),
        ApplicationOperation(branch=0, application="a", run="r", query="q", version=3),
    ],
)
def test_operations_tell_their_kind(operation: WriteOperation | AckOperation | ApplicationOperation) -> None:
    assert decode_operation(stored(encode(operation))) == operation


def test_a_header_that_commits_with_rows_has_a_format_of_its_own() -> None:
    """An earlier release, which would commit such a transaction without its rows, refuses the header."""
    header = TransactionHeader(format=CO_COMMIT_FORMAT, state="OPEN", timeout_ms=9, created_ms=1, co_commit=True)
    assert decode(TransactionHeader, stored(encode(header))) == header
    assert CO_COMMIT_FORMAT != FORMAT
    assert "co_commit" not in json.loads(encode(HEADER))
    with pytest.raises(UnknownFormat):
        decode(TransactionHeader, stored(json.dumps(json.loads(encode(header)) | {"format": FORMAT}).encode()))
    with pytest.raises(UnknownFormat):
        decode(CursorRecord, stored(json.dumps(json.loads(encode(header))).encode()))


def test_a_topic_that_a_migration_changed_has_a_format_of_its_own() -> None:
    """An earlier release, which would use the segment without knowing of the migration, refuses the record."""
    plain = TopicRecord(epoch=1, next_id=0, segments=[])
    changed = TopicRecord(format=MIGRATION_FORMAT, epoch=1, next_id=0, segments=[], reserved_for="persistent://a/b/c")
    for record in (plain, changed):
        assert decode(TopicRecord, stored(encode(record))) == record
    assert MIGRATION_FORMAT not in (FORMAT, CO_COMMIT_FORMAT)
    assert not {"migration", "origin", "reserved_for"} & json.loads(encode(plain)).keys()
    for record, other in ((plain, MIGRATION_FORMAT), (changed, FORMAT)):
        with pytest.raises(UnknownFormat):
            decode(TopicRecord, stored(json.dumps(json.loads(encode(record)) | {"format": other}).encode()))


@pytest.mark.parametrize("former", [FORMAT, 5])
def test_a_cursor_has_a_format_of_its_own(former: int) -> None:
    """A cursor of the former format, with two positions for each range, is refused."""
    cursor = CursorRecord(incarnation=1, mark_delete="1:0", deleted=["1:2+1 3"], partial=["1:9/5"])
    assert decode(CursorRecord, stored(encode(cursor))) == cursor
    value = json.loads(encode(cursor)) | {"format": former, "deleted": [["1:2", "1:3"]], "partial": {"1:9": [0, 2]}}
    with pytest.raises(UnknownFormat, match=f"has format version {former}, which this release does not know"):
        decode(CursorRecord, stored(json.dumps(value).encode()))


@pytest.mark.parametrize(
    "damage",
    [
        {"deleted": [""]},
        {"deleted": ["1:2 1"]},
        {"deleted": ["1:2+0"]},
        {"deleted": ["1:02"]},
        {"deleted": ["1:2 3\n"]},
        {"partial": ["1:2"]},
        {"partial": ["1:2/0"]},
        {"partial": ["1:2/5 0/1"]},
        {"partial": ["1:2/x"]},
    ],
)
def test_damaged_entries_of_a_cursor(damage: dict[str, list[str]]) -> None:
    """Adjacent ranges, ranges without an end, and empty batches are refused."""
    cursor = CursorRecord(incarnation=1, mark_delete="1:0")
    with pytest.raises(CorruptRecord, match=rf"damaged at \$\.{next(iter(damage))}"):
        decode(CursorRecord, stored(json.dumps(json.loads(encode(cursor)) | damage).encode()))


def test_an_acknowledgment_has_a_format_of_its_own() -> None:
    """An ack of the former format, which may not have been checked against its transaction, is refused."""
    operation = AckOperation(branch=0, segment="s", subscription="b", incarnation=1, acks=[AckDocument(position="1:0")])
    assert decode_operation(stored(encode(operation))) == operation
    former = json.loads(encode(operation)) | {"format": FORMAT, "admitted": False}
    with pytest.raises(UnknownFormat, match=f"has format version {FORMAT}"):
        decode_operation(stored(json.dumps(former).encode()))


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_an_unknown_format_is_refused_even_if_it_could_be_read(other: int) -> None:
    value = json.dumps(json.loads(encode(HEADER)) | {"format": other}).encode()
    with pytest.raises(UnknownFormat, match=rf"/txn/00 has format version {other}"):
        decode(TransactionHeader, stored(value))


def test_damage_is_reported_with_key_and_field() -> None:
    value = json.dumps(json.loads(encode(HEADER)) | {"created_ms": "soon"}).encode()
    with pytest.raises(CorruptRecord, match=r"/txn/00 is damaged at \$\.created_ms") as caught:
        decode(TransactionHeader, stored(value))
    assert (caught.value.key, caught.value.field) == ("/txn/00", "$.created_ms")


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"format": "1"}', b"\xff"])
def test_what_is_no_document_is_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode(CursorRecord, stored(value))


def test_an_unknown_field_is_refused() -> None:
    """An unknown field may be important, and would be lost by the next write."""
    value = json.dumps(json.loads(encode(HEADER)) | {"later": 1}).encode()
    with pytest.raises(CorruptRecord, match="later"):
        decode(TransactionHeader, stored(value))
