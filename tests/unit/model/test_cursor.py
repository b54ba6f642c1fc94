"""Uniting acknowledgments with a cursor: commutative, idempotent, and never a step back."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from txnframework.model.acks import Ack, AckState
from txnframework.model.cursor import (
    Cursor,
    advance,
    changes_since,
    from_record,
    moved,
    reached_by,
    state_of,
    to_record,
    unite,
)
from txnframework.model.positions import EARLIEST, Position


def at(entry: int, ledger: int = 1, index: int = -1) -> Position:
    return Position(ledger, entry, index)


START = Cursor(incarnation=3, mark_delete=Position(1, -1))


def test_the_mark_swallows_what_becomes_contiguous() -> None:
    cursor = unite(START, [Ack(at(0)), Ack(at(2)), Ack(at(3))])
    assert (cursor.mark_delete, tuple(cursor.deleted)) == (at(0), ((at(2), at(3)),))
    cursor = unite(cursor, [Ack(at(1))])
    assert (cursor.mark_delete, tuple(cursor.deleted)) == (at(3), ())


def test_what_is_done_is_found_among_many_ranges() -> None:
    """Each entry of a long backlog with gaps of every size, at both ends and across ledgers."""
    source = random.Random(7)
    done = {at(entry, ledger) for ledger in (1, 2) for entry in range(1, 300) if source.random() < 0.6}
    cursor = unite(START, [Ack(position) for position in done])
    assert len(cursor.deleted) > 50
    places = [at(entry, ledger) for ledger in (1, 2, 3) for entry in range(301)]
    for position in places:
        assert (state_of(cursor, position) is AckState.DELETED) is (position in done)


def test_ranges_do_not_join_across_ledgers() -> None:
    """Positions do not show the length of a ledger: there may be entries in between."""
    cursor = unite(START, [Ack(at(5)), Ack(at(0, ledger=2))])
    assert tuple(cursor.deleted) == ((at(5), at(5)), (at(0, ledger=2), at(0, ledger=2)))


def test_a_cumulative_ack_covers_everything_before_it_and_never_moves_back() -> None:
    cursor = unite(START, [Ack(at(2)), Ack(at(7)), Ack(at(5), cumulative=True), Ack(at(3), cumulative=True)])
    assert (cursor.mark_delete, tuple(cursor.deleted)) == (at(5), ((at(7), at(7)),))
    assert state_of(cursor, at(4)) is AckState.DELETED
    assert state_of(cursor, at(6)) is AckState.PENDING


def test_a_batch_is_done_when_all_its_indexes_are() -> None:
    half = unite(START, [Ack(at(0), 3, frozenset({0, 2}))])
    assert state_of(half, at(0, index=2)) is AckState.DELETED
    assert state_of(half, at(0, index=1)) is AckState.PENDING
    assert state_of(half, at(0)) is AckState.PENDING
    whole = unite(half, [Ack(at(0, index=1), 3)])
    assert (whole.mark_delete, whole.partial) == (at(0), {})


def test_a_cumulative_ack_in_mid_batch_leaves_the_rest_of_the_batch() -> None:
    cursor = unite(START, [Ack(at(4, index=1), 3, cumulative=True)])
    assert (cursor.mark_delete, cursor.partial) == (at(3), {at(4): frozenset({0, 1})})
    assert unite(cursor, [Ack(at(4, index=2), 3, cumulative=True)]).mark_delete == at(4)


def test_the_order_and_number_of_unions_do_not_matter() -> None:
    """Any process may apply any outcome at any time: all orders and repetitions give the same cursor."""
    acks = [
        Ack(at(0)),
        Ack(at(1), 2, frozenset({0})),
        Ack(at(1), 2, frozenset({1})),
        Ack(at(2), cumulative=True),
        Ack(at(4)),
    ]
    expected = unite(START, acks)
    for order in itertools.permutations(acks):
        cursor = START
        for ack in order:
            cursor = unite(unite(cursor, [ack]), [ack])
        assert cursor == expected


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_set_of_messages(seed: int) -> None:
    """The reference model of a cursor is the set of acknowledged messages."""
    draw = random.Random(seed)
    cursor, done = START, set()
    for _ in range(60):
        entry, index = draw.randrange(12), draw.randrange(3)
        kind = draw.random()
        if kind < 0.1:
            ack = Ack(at(entry, index=index), 3, cumulative=True)
            done |= {(e, i) for e in range(entry) for i in range(3)} | {(entry, i) for i in range(index + 1)}
        elif kind < 0.4:
            ack = Ack(at(entry), 3)
            done |= {(entry, i) for i in range(3)}
        else:
            ack = Ack(at(entry), 3, frozenset({index}))
            done.add((entry, index))
        before, cursor = (START if draw.random() < 0.1 else cursor), unite(cursor, [ack])
        for e, i in itertools.product(range(12), range(3)):
            assert (state_of(cursor, at(e, index=i)) is AckState.DELETED) == ((e, i) in done), (e, i)
        places = [at(e, index=i) for e, i in itertools.product(range(12), range(-1, 3))]
        since = changes_since(cursor, before)
        for one in places:
            is_new = state_of(cursor, one) is AckState.DELETED and state_of(before, one) is AckState.PENDING
            assert not is_new or any(first <= one <= last for first, last in since)
        assert all(at(e, index=i) <= reached_by(cursor) for e, i in done)
        assert reached_by(cursor).entry == at(max(done)[0])
        whole = [e for e in range(12) if all((e, i) in done for i in range(3))]
        assert cursor == unite(START, [Ack(at(e), 3) for e in whole] + [Ack(at(e), 3, frozenset({i})) for e, i in done])
    assert from_record(to_record(cursor)) == cursor


def test_changes_since_another_incarnation() -> None:
    """Compared with another incarnation, all acks have changed; compared with the same cursor, none."""
    cursor = unite(START, [Ack(at(2)), Ack(at(5), 2, frozenset({1}))])
    for before in (None, moved(cursor, at(0))):
        assert changes_since(cursor, before) == [(EARLIEST, at(5, index=1))]
    assert changes_since(cursor, cursor) == []


def test_a_cumulative_ack_that_completes_a_batch_passes_it() -> None:
    """A finished batch does not hold back the mark, in any order of its acks."""
    acks = [Ack(at(0), 3, frozenset({2})), Ack(at(0, index=1), 3, cumulative=True)]
    assert unite(START, acks).mark_delete == at(0)
    assert unite(START, reversed(acks)).mark_delete == at(0)


def test_advancing_passes_ledgers_and_never_moves_back() -> None:
    cursor = unite(START, [Ack(at(0, ledger=2))])
    moved = advance(cursor, Position(2, -1))
    assert (moved.mark_delete, tuple(moved.deleted)) == (at(0, ledger=2), ())
    assert advance(moved, EARLIEST).mark_delete == at(0, ledger=2)


def test_the_family_that_may_acknowledge() -> None:
    """A cursor belongs to one family, also after a seek and an ack; its record stores the family."""
    assert START.admits("log")
    limited = replace(START, family="metadata")
    for cursor in (limited, moved(limited, at(4)), unite(limited, [Ack(at(0))])):
        assert (cursor.admits("metadata"), cursor.admits("log")) == (True, False)
        assert from_record(to_record(cursor)) == cursor
