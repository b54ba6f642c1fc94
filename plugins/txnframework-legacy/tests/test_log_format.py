"""The format of log entries, and which entries are refused."""

from __future__ import annotations

import struct

import pytest

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import LedgerEntry, Position
from txnframework_legacy.log.format import BATCH_MAGIC, PLAIN_MAGIC, VERSION, decode_entry, encode_batch, encode_plain

RECORDS = (b"", b"a", b"\x0e\x01\x00\x01", bytes(range(256)))


def entry(data: bytes) -> LedgerEntry:
    return LedgerEntry(Position(3, 7), data)


def test_what_is_encoded_is_decoded_alike() -> None:
    """Decoding reverses encoding, alone or in a batch, also for a record that looks like an entry."""
    for record in RECORDS:
        assert decode_entry(entry(encode_plain(record)), "log") == (record,)
    assert decode_entry(entry(encode_batch(RECORDS)), "log") == RECORDS


def test_an_entry_begins_with_magic_and_version() -> None:
    """The first bytes are magic and version, by which other programs recognise an entry."""
    for data, magic in ((encode_plain(b"a"), PLAIN_MAGIC), (encode_batch((b"a",)), BATCH_MAGIC)):
        assert struct.unpack(">HH", data[:4]) == (magic, VERSION)


def test_an_unknown_version_is_an_error() -> None:
    """An entry of another release is refused by name, and never skipped."""
    for magic in (PLAIN_MAGIC, BATCH_MAGIC):
        with pytest.raises(UnknownFormat, match="entry 3:7 of log txns has format version 9"):
            decode_entry(entry(struct.pack(">HH", magic, 9) + b"future"), "txns")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few"),
        (b"\x0e\x01\x00", "too few"),
        (b"\xca\xfe\x00\x01a", "begins with 0xcafe"),
        (encode_batch(()), "the batch is empty"),
        (encode_batch((b"a", b"bcd"))[:-1], "record 1 of the batch is cut off"),
        (encode_batch((b"a", b"bcd"))[:-5], "record 1 of the batch is cut off"),
    ],
)
def test_what_is_damaged_is_an_error(data: bytes, reason: str) -> None:
    """The error names the entry and the damage."""
    with pytest.raises(CorruptEntry, match=f"entry 3:7 of txns is damaged: .*{reason}"):
        decode_entry(entry(data), "txns")
