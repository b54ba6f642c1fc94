"""The pure decisions: overlapping acks, readable positions, and aborted branches of ledgers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from txnframework.errors import CorruptRecord
from txnframework.model import Ack, Branch, Key, Position, Record, State, Transaction, TxnID
from txnframework.model.ack_overlap import AckContext, AckIndex, Verdict, judge, overlap, share_messages
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of, unite
from txnframework.model.records import TransactionHeader, encode
from txnframework_metadata.buffer.visibility import Intent, KnownOutcomes, seen, undecided
from txnframework_metadata.records.headers import header_of

T1, T2, T3 = TxnID(0, 1), TxnID(0, 2), TxnID(0, 3)
START = Cursor(1, Position(1, -1))


def at(entry_id: int, index: int = -1) -> Position:
    return Position(1, entry_id, index)


def upto(entry_id: int, index: int = -1, size: int = 1) -> Ack:
    return Ack(at(entry_id, index), size, cumulative=True)


def part(entry_id: int, *indexes: int) -> Ack:
    return Ack(at(entry_id), 4, frozenset(indexes))


def around(
    own: tuple[Ack, ...] = (),
    pending: tuple[Ack, ...] = (),
    committed: tuple[Ack, ...] = (),
    cursor: Cursor = START,
    unsure: tuple[Ack, ...] = (),
) -> AckContext:
    return AckContext((AckIndex(own),), (AckIndex(unsure),), ((T2, AckIndex(pending)),), committed, cursor)


# -- overlaps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Ack(at(3)), Ack(at(3)), True),
        (Ack(at(3)), Ack(at(4)), False),
        (Ack(at(3), 4), part(3, 1), True),
        (part(3, 0, 1), part(3, 1, 2), True),
        (part(3, 0, 1), part(3, 2, 3), False),
        (Ack(at(3, 1), 4), part(3, 1), True),
        (Ack(at(3, 1), 4), part(3, 2), False),
        (upto(3), Ack(at(2)), True),
        (upto(3), Ack(at(3)), True),
        (upto(3), Ack(at(4)), False),
        (upto(3, 1, 4), part(3, 1), True),
        (upto(3, 1, 4), part(3, 2), False),
        (upto(3, 1, 4), Ack(at(3), 4), True),
        (upto(3, 3, 4), part(3, 3), True),
        (upto(3), upto(9), True),
    ],
)
def test_what_two_transactions_cannot_both_hold(one: Ack, other: Ack, expected: bool) -> None:
    """Two acks conflict if they share a message, counted by batch index, or if both are cumulative, at any position."""
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


def test_individual_acks_conflict_with_what_is_done_and_what_is_pending() -> None:
    """Acks conflict with messages finished by the cursor, committed but not settled, or held by an open transaction."""
    assert judge([Ack(at(3))], around()) == Verdict()
    assert judge([Ack(at(3))], around(pending=(Ack(at(3)),))).other == T2
    assert judge([Ack(at(3))], around(committed=(Ack(at(3)),))).conflict
    assert judge([Ack(at(3))], around(committed=(upto(5),))).conflict
    done = unite(START, (upto(2), Ack(at(5)), part(6, 0)))
    for taken in (Ack(at(1)), Ack(at(5)), part(6, 0, 1), Ack(at(6), 4)):
        assert judge([taken], around(cursor=done)).conflict
    assert judge([Ack(at(4)), part(6, 1)], around(cursor=done)) == Verdict()


def test_what_shares_no_message_decides_nothing() -> None:
    """Disjoint acks never conflict, pending or committed, at any position of the cursor."""
    single = [Ack(at(entry)) for entry in range(4)]
    parts = [part(entry, *some) for entry in range(2) for some in ((0,), (1, 2), (3,), (0, 1, 2))]
    cumulative = [upto(entry) for entry in range(3)]
    acks = [*single, *parts, *cumulative]
    cursors = [START, *(unite(START, (ack,)) for ack in (Ack(at(0)), Ack(at(1)), part(0, 0), part(1, 1, 2), upto(1)))]
    apart = 0
    for one, other, cursor in product(acks, acks, cursors):
        alone = judge([one], around(cursor=cursor)).conflict
        if not share_messages([one], AckIndex([other])):
            apart += 1
            assert judge([one], around(pending=(other,), cursor=cursor)).conflict == alone
            assert judge([one], around(committed=(other,), cursor=cursor)).conflict == alone
        elif one == other:
            assert judge([one], around(pending=(other,), cursor=cursor)).conflict
    assert apart > 500


def test_cumulative_acks_conflict_with_less() -> None:
    """
    With pending ones at or below, another cumulative one, what moves nothing, and where the message that they name is
    done; single ones done are passed, and a pipeline's ranges may end at them.
    """
    assert judge([upto(5)], around(pending=(Ack(at(5)),))).conflict
    assert judge([upto(5)], around(pending=(Ack(at(6)),))) == Verdict()
    assert judge([upto(5)], around(pending=(upto(9),))).conflict
    assert judge([upto(5)], around(committed=(Ack(at(3)),))) == Verdict()
    named = around(cursor=unite(START, (Ack(at(5)),)))
    assert judge([upto(5)], named).conflict
    assert judge([upto(5)], replace(named, ranges=True)) == Verdict()
    assert judge([upto(6)], named) == Verdict()
    for reached in (upto(5), upto(7)):
        assert judge([upto(5)], around(committed=(reached,))).conflict
        assert judge([upto(5)], around(cursor=unite(START, (reached,)))).conflict
    assert judge([upto(5)], around(committed=(upto(4),))) == Verdict()
    assert judge([upto(5, 1, 4)], around(cursor=unite(START, (upto(5, 1, 4),)))).conflict
    assert judge([upto(5, 2, 4)], around(cursor=unite(START, (upto(5, 1, 4),)))) == Verdict()


def test_within_one_branch_cumulative_acks_only_move_forward_and_repeating_succeeds() -> None:
    """Repeating an equal cumulative ack succeeds; a lower one is an error."""
    own = (upto(5), Ack(at(7)), part(8, 0), part(8, 1))
    assert judge([upto(4)], around(own)).conflict
    assert judge([upto(6)], around(own)) == Verdict()
    for repeated in (upto(5), Ack(at(7)), Ack(at(2)), part(8, 0, 1)):
        assert judge([repeated], around(own)).repeated
    assert judge([upto(5), part(8, 2)], around(own)) == Verdict()
    assert judge([upto(3, 2, 4)], around((upto(3, 1, 4),))) == Verdict()
    assert judge([upto(3, 0, 4)], around((upto(3, 1, 4),))).conflict
    passed = unite(START, (upto(9),))
    assert judge([Ack(at(7))], around(own, cursor=passed)).repeated


def test_no_two_accepted_acks_ever_share_a_message() -> None:
    """After accepting an ack beside a pending one, applying either leaves the other's messages unfinished."""
    singles = [
        Ack(at(0), 2),
        Ack(at(1), 2),
        *(Ack(at(entry_id), 2, frozenset({i})) for entry_id, i in product((0, 1), (0, 1))),
    ]
    cumulatives = [upto(entry_id, i, 2) for entry_id, i in product((0, 1), (-1, 0, 1))]
    messages = [at(entry_id, i) for entry_id, i in product((0, 1), (0, 1))]
    for one, other in product([*singles, *cumulatives], repeat=2):
        if judge([one], around(pending=(other,))).conflict:
            continue
        done = [{m for m in messages if state_of(unite(START, (ack,)), m) is AckState.DELETED} for ack in (one, other)]
        if one.cumulative is other.cumulative or one.cumulative:
            assert not done[0] & done[1]


# -- visibility ---------------------------------------------------------------------------------------


def transaction(txn_id: TxnID, state: State, *branches: int) -> Transaction:
    return Transaction(txn_id, state, 0, 0, branches=frozenset(branches))


def test_the_lowest_open_intent_decides_how_far_may_be_read() -> None:
    """Intents of ended and unknown transactions, and those without a header, block no reader."""
    intents = [
        Intent(Branch(T1), 1, at(2)),
        Intent(Branch(T2), 1, at(4)),
        Intent(Branch(T2, 7), 1, at(5)),
        Intent(Branch(T3), 1, at(6)),
    ]
    headers = {T1: None, T2: transaction(T2, State.COMMITTED, 0), T3: transaction(T3, State.OPEN)}
    result = seen(at(9), intents, headers)
    assert (result.max_read, result.pin) == (at(6), T3)
    assert result.aborted == {1: frozenset({Branch(T2, 7)})}
    assert result.counted == {Branch(T2)}
    assert seen(at(3), intents, headers).max_read == at(3)
    headers[T3] = transaction(T3, State.ABORTED)
    result = seen(at(9), intents, headers)
    assert (result.max_read, result.pin) == (at(9), None)
    assert result.aborted == {1: frozenset({Branch(T2, 7), Branch(T3)})}


def test_headers_are_asked_for_as_far_as_they_matter() -> None:
    """Headers are read up to the first open one; further if announced entries need their outcomes."""
    intents = [Intent(Branch(txn_id), 1, at(where)) for txn_id, where in ((T1, 1), (T2, 2), (T3, 3))]
    assert undecided(intents, {}, None, 2) == [T1, T2]
    assert undecided(intents, {T1: None}, None, 9) == [T2, T3]
    pinned: dict[TxnID, Transaction | None] = {T1: transaction(T1, State.OPEN)}
    assert undecided(intents, pinned, None, 9) == []
    assert undecided(intents, pinned, at(2), 9) == []
    assert undecided(intents, pinned, at(3), 9) == [T2]
    assert undecided(intents, {**pinned, T2: None}, at(3), 9) == []


def test_how_a_branch_ended_is_remembered_beyond_its_settling() -> None:
    """The last reading is kept completely; outcomes of earlier readings are kept for a limited number of branches."""
    one, two, three = Branch(T1), Branch(T2), Branch(T3)
    known = KnownOutcomes(2)
    known.observe({1: frozenset({one}), 3: frozenset({two})}, [three])
    assert known.is_aborted(one, 1), "forgotten, and still in the last reading"
    assert known.is_aborted(one, 3) is None
    assert known.is_aborted(two, 9)
    assert known.is_aborted(three, 1) is False
    assert known.unsettled_between(1, 3) == {one, two}
    assert known.unsettled_between(2, 2) == frozenset()
    known.observe({}, [])
    assert known.unsettled_between(1, 3) == frozenset()
    assert (known.is_aborted(one, 1), known.is_aborted(two, 3), known.is_aborted(three, 1)) == (None, True, False)


def test_the_least_recently_used_outcomes_are_forgotten() -> None:
    """They are looked up again when they are needed."""
    known = KnownOutcomes(2)
    known.note([Branch(T1), Branch(T2)], aborted=True)
    known.is_aborted(Branch(T1), 1)
    known.note([Branch(T3)], aborted=False)
    assert [known.is_aborted(Branch(txn_id), 1) for txn_id in (T1, T2, T3)] == [True, None, False]


def test_a_header_of_no_known_state_is_reported() -> None:
    """The error has the key of the header."""
    document = TransactionHeader(state="MAYBE", timeout_ms=1, created_ms=0)
    with pytest.raises(CorruptRecord, match="state"):
        header_of(Record(Key(f"/txn/{T1}"), encode(document), 1))
