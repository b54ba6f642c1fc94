from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import replace
from itertools import product

import msgspec
import pytest

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model.entries import (
    BinaryColumn,
    EntryColumns,
    EntryMessage,
    EntryView,
    HeaderColumns,
    encode_columns,
    encode_entry,
    slice_entry,
)
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position

BRANCH = Branch(TxnID(0x8001, 5), 0x0102030405060708)
PRODUCER = "prod-é"

MESSAGES = (
    EntryMessage(b"k1", b"hello", (("a", b"1"), ("bc", b"")), 7, 1000),
    EntryMessage(None, b"", (), 8, 1001),
    EntryMessage(b"", b"xyz", (("a", b"23"),), 9, 1002),
)

# Byte for byte what is stored; a line is 8 bytes, the unit of alignment.
GOLDEN_LINES = """
    54584e45 0100 0700   # TXNE, version 1, in a branch + keys + headers
    431e7c53 f8000000    # checksum, 248 bytes
    03000000 03000000    # 3 messages, 3 headers
    0500000000000000     # transaction 80010000000000000000000000000005
    0000000000000180
    0807060504030201     # branch
    07000000 08000000    # 7 bytes of producer name, 8 of values
    02000000 04000000    # 2 of keys, 4 of header names
    03000000 00000000    # 3 of header values
    00000000 05000000    # values: offsets
    05000000 08000000
    0700000000000000     # sequence ids
    0800000000000000
    0900000000000000
    e803000000000000     # published
    e903000000000000
    ea03000000000000
    0500000000000000     # keys: the first and the third
    00000000 02000000
    02000000 02000000
    00000000 02000000    # headers of each message
    02000000 03000000
    00000000 01000000    # header names
    03000000 04000000
    00000000 01000000    # header values
    01000000 03000000
    70726f642dc3a900     # prod-é
    68656c6c6f78797a     # helloxyz
    6b31000000000000     # k1
    6162636100000000     # a bc a
    3132330000000000     # 1 23
"""
GOLDEN = bytes.fromhex("".join(line.partition("#")[0] for line in GOLDEN_LINES.splitlines()))


def resealed(data: bytes | bytearray) -> bytes:
    """Return the entry with a checksum that is right for what it holds."""
    entry = bytearray(data)
    entry[8:12] = zlib.crc32(entry[12:], zlib.crc32(entry[:8])).to_bytes(4, "little")
    return bytes(entry)


def int32(*numbers: int) -> bytes:
    """Return an int32 buffer."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def int64(*numbers: int) -> bytes:
    """Return an int64 buffer."""
    return struct.pack(f"<{len(numbers)}q", *numbers)


def batch(count: int) -> list[EntryMessage]:
    """Return so many messages, with and without keys and headers in no simple rhythm."""
    return [
        EntryMessage(
            None if i % 3 == 1 else bytes([i % 256]) * (i % 5),
            None if i % 11 == 4 else b"v" * (i % 7),
            tuple((f"h{j}é", bytes([j]) * j) for j in range(i % 4)),
            100 + i * (1 + i % 2),
            1_700_000_000_000 + i,
        )
        for i in range(0, count * 2, 2)
    ]


# -- the stored form ----------------------------------------------------------------------------------


def test_the_stored_form_never_changes() -> None:
    """Golden, in both directions: users have stored every byte of it."""
    assert encode_entry(MESSAGES, PRODUCER, BRANCH) == GOLDEN
    view = EntryView(GOLDEN)
    assert tuple(view.messages()) == MESSAGES
    assert (view.producer, view.branch, view.count) == (PRODUCER, BRANCH, 3)
    assert (view.first_sequence, view.last_sequence) == (7, 9)


NULLS = (
    EntryMessage(None, None, (), 7, 1000),
    EntryMessage(None, b"", (), 8, 1001),
    EntryMessage(None, b"xyz", (), 9, 1002),
)

# Byte for byte what is stored where a value is null.
GOLDEN_NULLS_LINES = """
    54584e45 0200 0800   # TXNE, version 2, a null
    54f6583b a0000000    # checksum, 160 bytes
    03000000 00000000    # 3 messages, no headers
    0000000000000000     # no transaction
    0000000000000000
    0000000000000000
    01000000 03000000    # 1 byte of producer name, 3 of values
    00000000 00000000
    00000000 00000000
    0600000000000000     # values: not the first
    00000000 00000000    # values: offsets
    00000000 03000000
    0700000000000000     # sequence ids
    0800000000000000
    0900000000000000
    e803000000000000     # published
    e903000000000000
    ea03000000000000
    7000000000000000     # p
    78797a0000000000     # xyz
"""
GOLDEN_NULLS = bytes.fromhex("".join(line.partition("#")[0] for line in GOLDEN_NULLS_LINES.splitlines()))


def test_the_stored_form_of_nulls_never_changes() -> None:
    """Null and empty values are distinct, in a version that earlier releases refuse."""
    assert encode_entry(NULLS, "p", None) == GOLDEN_NULLS
    view = EntryView(GOLDEN_NULLS)
    assert tuple(view.messages()) == NULLS
    assert view.has_nulls
    assert not EntryView(GOLDEN).has_nulls


def test_an_entry_of_nulls_only() -> None:
    """Only the validity bits of null values are stored."""
    messages = [EntryMessage(None, None, (), number, 0) for number in range(9)]
    view = EntryView(encode_entry(messages, "p", None))
    assert list(view.messages()) == messages
    assert (bytes(view.values_validity), len(view.values_data)) == (b"\0\0", 0)


def test_the_smallest_entry() -> None:
    """Absent branches, keys and headers take no space."""
    data = encode_entry([EntryMessage(None, b"", (), -5, -1)], "", None)
    assert len(data) == 72 + 8 + 8 + 8
    view = EntryView(data)
    assert list(view.messages()) == [EntryMessage(None, b"", (), -5, -1)]
    assert (view.branch, view.producer, view.has_keys, view.has_headers) == (None, "", False, False)
    assert not view.keys_offsets
    assert not view.headers_offsets


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 17, 100])
def test_messages_round_trip(count: int) -> None:
    """Any mixture of messages is preserved, from any kind of memory."""
    messages = batch(count)
    data = encode_entry(messages, "producer", BRANCH)
    for memory in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        view = EntryView(memory)
        assert list(view.messages()) == messages
        assert [view.message(i) for i in range(count)] == messages
    assert encode_columns(EntryView(data).columns(), "producer", BRANCH) == data


@pytest.mark.parametrize(("keyed", "headed", "branched", "null"), list(product((False, True), repeat=4)))
def test_absent_columns_are_absent_for_all(keyed: bool, headed: bool, branched: bool, null: bool) -> None:
    """Each combination of optional parts keeps the others in place."""
    messages = [
        msgspec.structs.replace(
            message,
            key=message.key if keyed else None,
            headers=message.headers if headed else (),
            value=None if null and message.sequence_id == 8 else message.value,
        )
        for message in MESSAGES
    ]
    view = EntryView(encode_entry(messages, PRODUCER, BRANCH if branched else None))
    assert list(view.messages()) == messages
    assert (view.has_keys, view.has_headers, view.branch) == (keyed, headed, BRANCH if branched else None)
    assert view.has_nulls is null


def test_extreme_numbers_round_trip() -> None:
    """All ranges of ids, branches, sequences and times are preserved."""
    branch = Branch(TxnID(0xFFFF, 2**112 - 1), 2**64 - 1)
    messages = [EntryMessage(None, b"", (), sequence, sequence) for sequence in (-(2**63), 0, 2**63 - 1)]
    view = EntryView(encode_entry(messages, "p", branch))
    assert (list(view.messages()), view.branch) == (messages, branch)
    assert not view.contiguous


def test_buffers_are_views_of_the_entry_at_multiples_of_eight() -> None:
    """Arrow uses the buffers directly: aligned, without a copy, read-only."""
    data = encode_entry(batch(11), "producer", BRANCH)
    view = EntryView(data)
    end = 72
    for name in (
        "values_validity",
        "values_offsets",
        "sequence_ids",
        "published_ms",
        "keys_validity",
        "keys_offsets",
        "headers_offsets",
        "header_names_offsets",
        "header_values_offsets",
        "values_data",
        "keys_data",
        "header_names_data",
        "header_values_data",
    ):
        buffer = getattr(view, name)
        assert buffer.obj is data
        assert buffer.readonly
        if name == "values_data":
            end += 8  # the producer's name
        raw = buffer.tobytes()
        assert data[end : end + len(raw)] == raw
        end += len(raw) + -len(raw) % 8
        assert end % 8 == 0
    assert end == len(data)
    assert [view.values_offsets.format, view.sequence_ids.format, view.published_ms.format] == ["i", "q", "q"]


def test_contiguous_tells_of_gaps() -> None:
    """Routing by key leaves gaps in one segment's sequences; an entry says whether it has any."""
    assert EntryView(GOLDEN).contiguous
    gap = [MESSAGES[0], MESSAGES[2]]
    assert not EntryView(encode_entry(gap, "p", None)).contiguous


# -- ready-made columns -------------------------------------------------------------------------------


def test_columns_give_the_same_bytes_as_messages() -> None:
    """Arrow columns and single messages give the same bytes."""
    columns = EntryColumns(
        3,
        BinaryColumn(int32(0, 5, 5, 8), b"helloxyz"),
        int64(7, 8, 9),
        int64(1000, 1001, 1002),
        BinaryColumn(int32(0, 2, 2, 2), b"k1"),
        b"\x05",
        HeaderColumns(
            int32(0, 2, 2, 3),
            BinaryColumn(int32(0, 1, 3, 4), b"abca"),
            BinaryColumn(int32(0, 1, 1, 3), b"123"),
        ),
    )
    assert encode_columns(columns, PRODUCER, BRANCH) == GOLDEN


def test_columns_may_be_cut_out_of_longer_buffers() -> None:
    """Arrow buffers may be padded, have undefined trailing bits, and be slices."""
    columns = EntryColumns(
        3,
        BinaryColumn(memoryview(array("i", [2, 7, 7, 10, 99])), bytearray(b"..helloxyz......")),
        memoryview(array("q", [7, 8, 9, 0])),
        int64(1000, 1001, 1002) + bytes(40),
        BinaryColumn(int32(1, 3, 3, 3), b".k1..."),
        b"\xfd\xff",
        HeaderColumns(
            int32(1, 3, 3, 4),
            BinaryColumn(int32(0, 2, 3, 5, 6, 9), b"..abca......"),
            BinaryColumn(int32(0, 1, 2, 2, 4, 9), b".123....."),
        ),
    )
    assert encode_columns(columns, PRODUCER, BRANCH) == GOLDEN


def test_columns_without_any_key_or_header_are_dropped() -> None:
    """A batch has one form: an empty column is stored as no column."""
    bare = EntryColumns(2, BinaryColumn(int32(0, 1, 2), b"ab"), int64(1, 2), int64(0, 0))
    empty = replace(
        bare,
        keys=BinaryColumn(int32(0, 0, 0), b""),
        keys_validity=b"\x00",
        headers=HeaderColumns(int32(0, 0, 0), BinaryColumn(int32(0), b""), BinaryColumn(int32(0), b"")),
    )
    assert encode_columns(empty, "p", None) == encode_columns(bare, "p", None)
    assert encode_columns(replace(bare, values_validity=b"\xff"), "p", None) == encode_columns(bare, "p", None)
    all_keyed = replace(empty, keys_validity=None)
    assert [message.key for message in EntryView(encode_columns(all_keyed, "p", None)).messages()] == [b"", b""]


BARE = EntryColumns(2, BinaryColumn(int32(0, 1, 2), b"ab"), int64(1, 2), int64(0, 0))

BAD_COLUMNS = {
    "no message": replace(BARE, count=0),
    "offsets too short": replace(BARE, values=BinaryColumn(int32(0, 1), b"ab")),
    "offsets fall": replace(BARE, values=BinaryColumn(int32(0, 2, 1), b"ab")),
    "offsets below zero": replace(BARE, values=BinaryColumn(int32(-1, 1, 2), b"ab")),
    "data too short": replace(BARE, values=BinaryColumn(int32(0, 1, 3), b"ab")),
    "sequences too short": replace(BARE, sequence_ids=int64(1)),
    "sequences repeat": replace(BARE, sequence_ids=int64(1, 1)),
    "sequences fall": replace(BARE, sequence_ids=int64(2, 1)),
    "times too short": replace(BARE, published_ms=int64(1)),
    "validity too short": replace(BARE, keys=BinaryColumn(int32(0, 0, 0), b""), keys_validity=b""),
    "values validity too short": replace(BARE, values_validity=b""),
    "header names too few": replace(
        BARE, headers=HeaderColumns(int32(0, 1, 2), BinaryColumn(int32(0, 1), b"a"), BinaryColumn(int32(0, 0, 0), b""))
    ),
}


@pytest.mark.parametrize("columns", BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_columns_that_do_not_fit_are_refused(columns: EntryColumns) -> None:
    """Nothing is written that a reader would refuse."""
    with pytest.raises(ValueError, match=r"entry|buffer|offsets"):
        encode_columns(columns, "p", None)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [MESSAGES[1], MESSAGES[0]],
        [msgspec.structs.replace(MESSAGES[0], sequence_id=2**63)],
        [msgspec.structs.replace(MESSAGES[0], published_ms=-(2**63) - 1)],
        [msgspec.structs.replace(MESSAGES[0], headers=(("\ud800", b""),))],
    ],
)
def test_messages_that_cannot_be_stored_are_refused(messages: list[EntryMessage]) -> None:
    """An empty batch, falling sequences, numbers beyond 64 bits, names without UTF-8."""
    with pytest.raises(ValueError, match=r"entry|fit|surrogates"):
        encode_entry(messages, "p", None)


def test_a_branch_beyond_64_bits_is_refused() -> None:
    """A negative branch is refused, too."""
    for number in (-1, 2**64):
        with pytest.raises(ValueError, match="64 bits"):
            encode_entry(MESSAGES, "p", Branch(TxnID(0, 1), number))


# -- slices -------------------------------------------------------------------------------------------


def test_every_slice_is_the_entry_of_its_messages() -> None:
    """Also where it loses the last key or header, and at every bit of the validity bitmap."""
    messages = batch(19)
    data = encode_entry(messages, "producer", BRANCH)
    for first in range(19):
        for last in range(first, 19):
            assert slice_entry(data, first, last) == encode_entry(messages[first : last + 1], "producer", BRANCH)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (0, 3), (2, 1), (3, 3)])
def test_a_slice_lies_within_its_entry(first: int, last: int) -> None:
    """A slice is never clipped silently."""
    with pytest.raises(IndexError):
        slice_entry(GOLDEN, first, last)


def test_a_message_lies_within_its_entry() -> None:
    """Negative indexes do not count from the end: a batch index comes from a position."""
    for index in (-1, 3):
        with pytest.raises(IndexError):
            EntryView(GOLDEN).message(index)


# -- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_changed_byte_anywhere_is_refused(change: int) -> None:
    """A change at any offset is refused: in the version as another format, elsewhere as damage."""
    for at in range(len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[at] ^= change
        with pytest.raises(UnknownFormat if at in (4, 5) else CorruptEntry):
            EntryView(damaged)


def test_a_truncated_or_lengthened_entry_is_refused() -> None:
    """At every length."""
    for end in range(len(GOLDEN)):
        with pytest.raises(CorruptEntry):
            EntryView(GOLDEN[:end])
    with pytest.raises(CorruptEntry):
        EntryView(GOLDEN + bytes(8))


def test_an_unknown_version_is_told_apart_from_damage() -> None:
    """Even if the rest is unreadable: an upgrade helps, a repair does not."""
    later = GOLDEN[:4] + b"\x03\x00" + b"what later releases write"
    with pytest.raises(UnknownFormat) as caught:
        EntryView(later, Position(3, 4))
    assert caught.value.version == 3
    assert "3:4" in str(caught.value)


def test_damage_names_the_position() -> None:
    """The error has the position, so that an operator can find the entry."""
    with pytest.raises(CorruptEntry) as caught:
        EntryView(GOLDEN[:-1], Position(3, 4))
    assert caught.value.position == Position(3, 4)
    assert "3:4" in str(caught.value)


@pytest.mark.parametrize(
    ("at", "byte"),
    [
        (6, 0x17),  # a flag that does not exist
        (6, 0x0F),  # a flag of another version
        (4, 0x02),  # a version for nulls, and no null
        (6, 0x05),  # keys that are stored but not announced
        (16, 0x00),  # no message
        (16, 0xFF),  # more messages than room
        (20, 0x02),  # fewer headers than stored
        (52, 0x07),  # less data than the offsets say, within the same padding
        (72, 0x01),  # a first offset beyond 0
        (76, 0xF0),  # an offset beyond the data between good ones
        (79, 0x80),  # a negative one
        (156, 0x01),  # keys that end before their data
        (172, 0x02),  # a header of no message
        (184, 0x05),  # a header name that ends before it begins
        (204, 0x04),  # a header value beyond the data
        (213, 0xFF),  # a producer's name that is not UTF-8
    ],
)
def test_a_wrong_entry_with_a_right_checksum_is_refused(at: int, byte: int) -> None:
    """A checksum detects damage, not a wrong writer: Arrow must never get offsets outside of the data."""
    wrong = bytearray(GOLDEN)
    wrong[at] = byte
    with pytest.raises(CorruptEntry):
        EntryView(resealed(wrong))


def test_a_header_name_that_is_not_utf8_is_damage() -> None:
    """Column users see the bytes; a caller that reads the message gets a clear error."""
    wrong = bytearray(GOLDEN)
    wrong[232] = 0xFF
    view = EntryView(resealed(wrong), Position(3, 4))
    with pytest.raises(CorruptEntry, match="3:4"):
        view.message(0)
    assert view.message(1) == MESSAGES[1]
