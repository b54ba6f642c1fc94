"""The cost of a cursor with many gaps: an ack re-encodes few chunks, and all others keep their texts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from txnframework.model.acks import Ack
from txnframework.model.chunks import Chunk, Chunks
from txnframework.model.cursor import Cursor, advance, from_record, to_record, unite
from txnframework.model.entry_ranges import EntryRanges, Range, RangeChunk
from txnframework.model.partial_entries import PartialChunk, PartialEntries
from txnframework.model.positions import Position
from txnframework.model.records import encode

HOLES = 9_000
START = Cursor(1, Position(1, -1))


def at(entry: int, ledger: int = 1) -> Position:
    return Position(ledger, entry)


def ranges_of(entries: Iterable[Position]) -> list[Range]:
    """Return the ranges of entries, in the plainest way."""
    found: list[Range] = []
    for entry in sorted(entries):
        if found and found[-1][1] == Position(entry.ledger_id, entry.entry_id - 1):
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found


def new_chunks(before: Chunks[Chunk], after: Chunks[Chunk]) -> int:
    """Return how many chunks must be encoded again."""
    assert all(len(chunk.entries) <= chunk.entries_max for chunk in after.chunks)
    return len({id(chunk) for chunk in after.chunks} - {id(chunk) for chunk in before.chunks})


@pytest.mark.parametrize("seed", range(8))
def test_ranges_agree_with_a_set_of_entries(seed: int) -> None:
    """Chunks are divided, emptied and joined, in two ledgers, one by one and together, and up to a mark that moves."""
    draw = random.Random(seed)
    places = [at(entry, ledger) for ledger in (1, 2) for entry in range(1, 700)]
    draw.shuffle(places)
    cursor, done, mark = START, set[Position](), START.mark_delete
    while places:
        count = draw.choice((1, 1, 2, 60))
        some, places = places[:count], places[count:]
        if draw.random() < 0.05:
            mark = max(mark, draw.choice(some))
            cursor = advance(cursor, mark)
        cursor = unite(cursor, map(Ack, some))
        done.update(some)
        left = ranges_of(entry for entry in done if entry > mark)
        if left and left[0][0] == Position(mark.ledger_id, mark.entry_id + 1):
            mark = left.pop(0)[1]
        assert cursor.mark_delete == mark
        assert list(cursor.deleted) == left
        assert cursor == replace(cursor, deleted=EntryRanges.of(left))
        assert len(cursor.deleted) == len(left)
        if left:
            assert (cursor.deleted.first, cursor.deleted.last) == (left[0], left[-1])
    assert from_record(to_record(cursor)) == cursor


@pytest.mark.parametrize("seed", range(4))
def test_partial_entries_agree_with_a_mapping(seed: int) -> None:
    """Entries come, grow and go, in any order."""
    draw = random.Random(seed)
    partial, expected = PartialEntries(), dict[Position, frozenset[int]]()
    for _ in range(400):
        entry = at(draw.randrange(1, 90), draw.choice((1, 2)))
        bits = draw.choice((0, 1 << draw.randrange(70), 0b1011))
        partial = partial.changed({entry: bits})
        expected.pop(entry, None)
        if bits:
            expected[entry] = frozenset(index for index in range(70) if bits >> index & 1)
        mark = at(draw.randrange(90), draw.choice((1, 1, 2)))
        assert partial.beyond(mark) == {entry: some for entry, some in expected.items() if entry > mark}
        assert partial == expected
        assert partial == PartialEntries.of(expected)
        assert list(partial) == sorted(expected)
    assert PartialEntries(map(PartialChunk.parse, partial.texts())) == partial


def test_ranges_that_differ() -> None:
    """Ranges of the same number are equal only if all are, wherever the difference is."""
    ranges = EntryRanges.of((at(2 * entry), at(2 * entry)) for entry in range(1, 300))
    for changed in (2, 300, 598):
        other = EntryRanges.of((first, last) for first, last in ranges if first.entry_id != changed)
        assert other != ranges
        assert other.adding([at(changed)]) == ranges
        assert other.adding([at(changed + 1)]) != ranges
    assert ranges != PartialEntries()


def test_the_text_of_ranges() -> None:
    """A gap in the usual order takes two characters; the first range of a chunk has its position."""
    ranges = EntryRanges.of([(at(9), at(11)), (at(14), at(14)), (at(16), at(17)), (at(0, 4), at(0, 4))])
    assert ranges.texts() == ["1:9+2 3 2+1", "4:0"]
    assert EntryRanges(map(RangeChunk.parse, ranges.texts())) == ranges
    assert PartialEntries.of({at(9): frozenset({0, 2}), at(12): frozenset({1})}).texts() == ["1:9/5 3/2"]


def test_an_acknowledgment_beyond_many_holes_encodes_a_chunk() -> None:
    """At the end, in the middle, into a hole, at the mark, of a part of a batch: at most two chunks are new."""
    cursor = unite(START, [Ack(at(2 * number)) for number in range(1, HOLES + 1)])
    assert len(cursor.deleted) == HOLES
    assert len(encode(to_record(cursor))) < 3 * HOLES
    for entry in (2 * HOLES + 2, 2 * HOLES + 1, HOLES + 1, 3, 1, 0):
        after = unite(cursor, [Ack(at(entry))])
        assert after != cursor
        assert new_chunks(cursor.deleted, after.deleted) <= 2
        cursor = after
    assert unite(cursor, [Ack(at(4))]) == cursor
    assert cursor.mark_delete == at(4)


def test_an_acknowledgment_in_one_of_many_batches_encodes_a_chunk() -> None:
    """Each entry has a partial ack, and one of them gets more, all, or a cumulative ack to its middle."""
    cursor = unite(START, [Ack(at(number), 100, frozenset({0, 5})) for number in range(1, HOLES + 1)])
    assert len(cursor.partial) == HOLES
    for ack in (
        Ack(at(7), 100, frozenset({9})),
        Ack(at(HOLES // 2), 100),
        Ack(Position(1, 9, 3), 100, cumulative=True),
        Ack(at(HOLES + 1), 100, frozenset({1})),
    ):
        after = unite(cursor, [ack])
        assert after != cursor
        assert new_chunks(cursor.partial, after.partial) <= 2
        cursor = after
    assert cursor.mark_delete == at(8)
    assert cursor.partial[at(9)] == frozenset({0, 1, 2, 3, 5})


def test_an_index_beyond_its_batch() -> None:
    """Such an index names no message, so it acknowledges none."""
    assert unite(START, [Ack(at(1), 2, frozenset({1 << 62}))]) == START
    assert unite(START, [Ack(Position(1, 0, 1 << 62), 2, cumulative=True)]).mark_delete == at(0)
