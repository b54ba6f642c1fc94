"""The copy of the records, its sorted keys, and the subjects and messages of records."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put
from txnframework_nats.records._copy import RecordCopy
from txnframework_nats.records._layout import Content, Layout, decode, encode_delete, encode_put, record_id
from txnframework_nats.records._sorted_keys import SortedKeys
from txnframework_nats.records._watches import RecordWatches, concerns

LAYOUT = Layout("tests")


def test_sorted_keys_behave_like_a_sorted_list() -> None:
    """Whatever is added and removed, the keys are in order, and are found from any key on."""
    chosen = random.Random(7)
    keys: SortedKeys[int] = SortedKeys()
    expected: list[int] = []
    for _ in range(20_000):
        key = chosen.randrange(6_000)
        at = bisect_left(expected, key)
        if at < len(expected) and expected[at] == key:
            keys.remove(key)
            del expected[at]
        else:
            keys.add(key)
            expected.insert(at, key)
        if not chosen.randrange(100):
            start = chosen.randrange(6_000)
            assert list(keys.from_(start)) == expected[bisect_left(expected, start) :]
    assert len(keys) == len(expected)
    for key in expected:
        keys.remove(key)
    assert list(keys.from_(0)) == []


def test_repeated_messages_change_nothing() -> None:
    """A consumer that replaces another one may deliver a message again, also one before a later message."""
    copy = RecordCopy()
    entry = frozenset({IndexEntry("i", b"k")})
    first = Content(("/a", "/a"), entry, b"one")
    assert copy.apply(first, 5, 0) is not None
    assert copy.apply(first, 5, 0) is None
    assert copy.apply(Content(("/a", "/a"), frozenset(), None), 6, 5) is not None
    assert copy.apply(first, 5, 0) is None
    assert copy.get(("/a", "/a")) is None
    assert copy.sequence(("/a", "/a")) == 6
    assert copy.scan_index(IndexRange("i", b"", b"z"), 10).records == ()


INDEXED = IndexRange("i", b"", b"z")
NO_ENTRIES: frozenset[IndexEntry] = frozenset()


@pytest.mark.parametrize("value", [None, b"three"], ids=["deleted", "written"])
@pytest.mark.parametrize("read", [0, 5], ids=["unread", "read"])
@pytest.mark.parametrize("target", [Key("/a"), KeyRange("/a", "/b"), INDEXED], ids=repr)
def test_unread_versions_wake(target: Key | KeyRange | IndexRange, read: int, value: bytes | None) -> None:
    """The stream may drop a version, and its index entries, before this process reads it; watches wake nevertheless."""
    copy, place = RecordCopy(), record_id(Key("/a"))
    if read:
        copy.apply(Content(place, NO_ENTRIES, b"one"), read, 0)
    change = copy.apply(Content(place, NO_ENTRIES, value), 7, 6)
    assert change is not None
    watches = RecordWatches()
    watch = watches.arm(target)
    watches.notify([change])
    with pytest.raises(StopIteration):
        watch.changed().send(None)


@pytest.mark.parametrize("value", [None, b"two"], ids=["deleted", "written"])
def test_changes_without_entries_wake_no_watch_on_an_index(value: bytes | None) -> None:
    """If this process has read all versions of a record, its changes wake only the watches that they concern."""
    copy, place = RecordCopy(), record_id(Key("/a"))
    changes = [
        copy.apply(Content(place, NO_ENTRIES, b"one"), 5, 0),
        copy.apply(Content(place, NO_ENTRIES, value), 6, 5),
    ]
    assert [change and concerns(INDEXED, change) for change in changes] == [False, False]


KEYS = [
    Key("/a"), Key("/a", "p"), Key("/a", "q"), Key("/a/b"), Key("/a.b"), Key("/a=2Eb"), Key("/a//b"), Key("/"),
    Key("/a/"), Key("/a b*>"), Key("/ä"), Key("/" + "x" * 3_000), Key("/" + "x" * 3_001), Key("a"), Key(""),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path[:10])
def test_subjects_are_valid_and_different(key: Key) -> None:
    """Each place has a subject of its own, which every server accepts."""
    subject = LAYOUT.record(record_id(key))
    assert LAYOUT.is_record(subject)
    assert subject.isascii()
    assert len(subject) < 400
    assert all(subject.split("."))
    assert not set("*> \t\r\n") & set(subject)
    assert [other for other in KEYS if LAYOUT.record(record_id(other)) == subject] == [key]


def test_messages_say_what_was_written() -> None:
    """A message contains the key, the value and the index entries; a deletion contains no value."""
    place = ("/ä", "p")
    put = Put(Key(*place), b"\x00value", Expect.ANY, (IndexEntry("i", b"\xff"),))
    assert decode("s", encode_put(place, put)) == Content(place, frozenset(put.indexes), b"\x00value")
    assert decode("s", encode_delete(place)) == Content(place, frozenset(), None)
    with pytest.raises(UnknownFormat):
        decode("s", b"\x95\x02\xa1a\xa1a\x90\xc0")
    for damaged in (b"", b"\xff", b"\x01", b"\x95\x01\xa1a\xa1a\x90", encode_put(place, put)[:-1]):
        with pytest.raises(CorruptRecord):
            decode("s", damaged)
