from __future__ import annotations

from collections.abc import Callable

import pytest

from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage, MessageState
from txnframework.broker.dispatch.open_acks import OpenAcks, acks_of
from txnframework.model import EARLIEST, Ack, Branch, PendingAck, Position, State, TxnID
from txnframework.model.cursor import Cursor, changes_since, unite
from txnframework.model.delays import delayed_until
from txnframework.model.entries import EntryMessage

CURSOR = Cursor(1, Position(0, -1))
NOTHING = OpenAcks({}, 1)
TXN = TxnID(0, 7)
BRANCH = Branch(TXN)


def _at(entry: int, index: int = 0) -> Position:
    return Position(1, entry, index)


def _read(deliveries: Deliveries, entry: int, size: int = 1, open_acks: OpenAcks = NOTHING) -> None:
    for index in range(size):
        content = EntryMessage(None, b"", (), entry * 10 + index, 0)
        deliveries.read(HeldMessage(_at(entry, index), size, content, "p", None), CURSOR, open_acks)


def _holding(*acks: Ack) -> OpenAcks:
    return OpenAcks({TXN: tuple(PendingAck(BRANCH, ack, State.OPEN, 1) for ack in acks)}, 1)


def _waiting(deliveries: Deliveries) -> list[tuple[int, int, int]]:
    return [
        (one.position.entry_id, one.position.batch_index, one.redelivery_count) for one in deliveries.candidates(99)
    ]


def test_what_is_done_or_held_is_not_offered() -> None:
    """A message held by an open transaction is kept without delivery; a message finished by the cursor is dropped."""
    deliveries = Deliveries()
    _read(deliveries, 1, 2, _holding(Ack(Position(1, 1), 2, frozenset({1}))))
    deliveries.read(
        HeldMessage(_at(2), 1, EntryMessage(None, b"", (), 0, 0), "p", None), Cursor(1, Position(1, 2)), NOTHING
    )
    assert _waiting(deliveries) == [(1, 0, 0)]
    assert len(deliveries.messages) == 2
    assert deliveries.holders() == {TXN}


def test_a_message_that_is_given_back_comes_first_and_counts() -> None:
    """The message returns in reading order; its count rises only if the user saw it."""
    deliveries = Deliveries()
    for entry in (1, 2, 3):
        _read(deliveries, entry)
    for entry in (1, 2):
        assert deliveries.deliver(_at(entry), 5) is not None
    assert deliveries.deliver(_at(2), 6) is None
    assert deliveries.delivered[5] == 2
    assert deliveries.requeue((_at(2), _at(1), _at(9)), 5, frozenset({_at(2)})) == [_at(2), _at(1)]
    assert _waiting(deliveries) == [(1, 0, 1), (2, 0, 0), (3, 0, 0)]
    assert deliveries.delivered[5] == 0


def test_an_aborted_acknowledgment_is_delivered_again() -> None:
    """A cumulative ack is the exception: the consumer requests redelivery."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in (1, 2, 3):
        _read(deliveries, entry)
        deliveries.deliver(_at(entry), 5)
    progress.pend(progress.begin_ack((_at(1),), BRANCH, cumulative=False))
    progress.pend(progress.begin_ack((_at(2),), BRANCH, cumulative=True))
    assert progress.reconcile(CURSOR, NOTHING, progress.begin_refresh()) == {_at(1), _at(2)}
    assert _waiting(deliveries) == [(1, 0, 1)]
    assert deliveries.delivered_to(5) == (_at(2), _at(3))


def test_a_look_that_began_before_an_acknowledgment_says_nothing_about_it() -> None:
    """Otherwise, the new acknowledgment would look aborted."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    _read(deliveries, 1)
    deliveries.deliver(_at(1), 5)
    look = progress.begin_refresh()
    begun = progress.begin_ack((_at(1),), BRANCH, cumulative=False)
    assert progress.reconcile(CURSOR, NOTHING, look) == frozenset()
    progress.pend(begun)
    assert progress.reconcile(CURSOR, NOTHING, look) == frozenset()
    held = deliveries.messages.get(_at(1))
    assert held is not None
    assert held.state is MessageState.PENDING_ACK
    assert progress.reconcile(CURSOR, NOTHING, progress.begin_refresh()) == {_at(1)}


def test_a_look_that_began_before_frees_nothing_that_another_transaction_took_over() -> None:
    """If another transaction acks a message before the abort of the first is read, the second transaction holds it."""
    for freed_first in (False, True):
        deliveries = Deliveries()
        progress = AckProgress(deliveries)
        _read(deliveries, 1, open_acks=_holding(Ack(_at(1).entry)))
        held = progress.pending((_at(1), _at(2)))
        look = progress.begin_refresh()
        if freed_first:
            assert progress.reconcile(CURSOR, NOTHING, look) == {_at(1)}
            deliveries.deliver(_at(1), 5)
        progress.take_over(held, Branch(TxnID(0, 8)), cumulative=True)
        assert progress.reconcile(CURSOR, NOTHING, look) == frozenset()
        assert deliveries.holders() == {TxnID(0, 8)}
        assert deliveries.candidates(9) == deliveries.delivered_to(5) == ()
        assert progress.reconcile(CURSOR, NOTHING, progress.begin_refresh()) == {_at(1)}


def test_what_others_acknowledge_is_noticed() -> None:
    """Messages that others hold or finish are detected, in any state of delivery."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in (1, 2, 3):
        _read(deliveries, entry)
    deliveries.deliver(_at(1), 5)
    assert progress.reconcile(CURSOR, _holding(Ack(Position(1, 2), cumulative=True)), progress.begin_refresh()) == set()
    assert _waiting(deliveries) == [(3, 0, 0)]
    assert progress.is_held(_at(1))
    passed = Cursor(1, Position(1, 2))
    assert progress.reconcile(passed, NOTHING, progress.begin_refresh()) == {_at(1), _at(2)}
    assert len(deliveries.messages) == 1


def test_a_refused_acknowledgment_leaves_things_as_they_were() -> None:
    """Delivered messages remain delivered, waiting ones waiting; those of a lost consumer wait for another one."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    _read(deliveries, 1)
    _read(deliveries, 2)
    deliveries.deliver(_at(1), 5)
    progress.undo_ack(progress.begin_ack((_at(1), _at(2)), BRANCH, cumulative=False))
    assert deliveries.delivered_to(5) == (_at(1),)
    assert _waiting(deliveries) == [(2, 0, 0)]
    begun = progress.begin_ack((_at(1),), BRANCH, cumulative=False)
    deliveries.detach(5)
    progress.undo_ack(begun)
    assert _waiting(deliveries) == [(1, 0, 0), (2, 0, 0)]


def test_a_refused_acknowledgment_that_a_look_passed_over_waits_for_another_look() -> None:
    """After a refused ack, messages skipped by an earlier refresh wait for another refresh.

    Messages that others acknowledged are not returned again, though they were delivered before; free ones are
    redelivered.
    """
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    done = Cursor(1, Position(1, 1))
    for entry in (1, 2):
        _read(deliveries, entry)
        held = deliveries.deliver(_at(entry), 5)
    begun = progress.begin_ack((_at(1), _at(2)), BRANCH, cumulative=False)
    assert progress.reconcile(done, NOTHING, progress.begin_refresh()) == set()
    assert progress.undo_ack(begun), "a look is needed"
    assert held is not None
    assert not any(deliveries.hand_out(5, _at(entry), number) for entry in (1, 2) for number in (1, held.delivery))
    assert progress.reconcile(done, NOTHING, progress.begin_refresh()) == {_at(1), _at(2)}
    assert _waiting(deliveries) == [(2, 0, 1)]
    deliveries.deliver(_at(2), 5)
    assert not progress.undo_ack(progress.begin_ack((_at(2),), BRANCH, cumulative=False)), "nothing came by"
    assert deliveries.delivered_to(5) == (_at(2),)


def test_an_acknowledgment_from_before_a_seek_finishes_nothing() -> None:
    """After a seek, the message at that position was read again and is another delivery."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    _read(deliveries, 1)
    begun = progress.begin_ack((_at(1),), None, cumulative=False)
    deliveries.clear()
    _read(deliveries, 1)
    assert deliveries.forget(begun) == frozenset()
    assert _waiting(deliveries) == [(1, 0, 0)]
    assert deliveries.forget(progress.begin_ack((_at(1),), None, cumulative=False)) == {_at(1)}
    assert len(deliveries.messages) == 0


def test_acknowledgments_are_gathered_by_entry() -> None:
    """An ack of a whole batch has no indexes."""
    sized = [(_at(2, 1), 2), (_at(1, 0), 3), (_at(2, 0), 2), (_at(1, 2), 3)]
    assert acks_of(sized) == (
        Ack(Position(1, 1), 3, frozenset({0, 2})),
        Ack(Position(1, 2), 2, None),
    )


def test_what_an_acknowledgment_covers() -> None:
    """Acks cover single messages, indexes, whole entries, and cumulative ranges that end in mid-batch."""

    def covers(ack: Ack, position: Position) -> bool:
        return _holding(ack).holder(position) is not None

    assert covers(Ack(Position(1, 2), 3), _at(2, 1))
    assert not covers(Ack(Position(1, 2), 3), _at(3))
    assert covers(Ack(Position(1, 2), 3, frozenset({1})), _at(2, 1))
    assert not covers(Ack(Position(1, 2), 3, frozenset({1})), _at(2, 0))
    assert covers(Ack(_at(2, 1), 3, cumulative=True), _at(1, 7))
    assert covers(Ack(_at(2, 1), 3, cumulative=True), _at(2, 0))
    assert not covers(Ack(_at(2, 1), 3, cumulative=True), _at(2, 2))


def test_who_holds_follows_every_event() -> None:
    """A transaction holds messages as long as one of its acks is pending."""
    other = Branch(TxnID(0, 8))
    of_other = OpenAcks({other.txn_id: (PendingAck(other, Ack(Position(1, 1)), State.OPEN, 1),)}, 1)
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in (1, 2, 3):
        _read(deliveries, entry)
    one, two = (progress.begin_ack((_at(entry),), BRANCH, cumulative=False) for entry in (1, 2))
    assert deliveries.holders() == frozenset(), "it is not recorded yet"
    progress.pend(one)
    progress.pend(two)
    assert deliveries.holders() == {TXN}
    progress.reconcile(CURSOR, of_other, progress.begin_refresh())
    assert deliveries.holders() == {other.txn_id}, "one was released, the other is held by somebody else now"
    progress.pend(progress.begin_ack((_at(2), _at(3)), BRANCH, cumulative=False))
    deliveries.forget([held for held in [deliveries.messages.get(_at(2))] if held])
    assert deliveries.holders() == {TXN, other.txn_id}
    progress.reconcile(Cursor(1, Position(1, 3)), NOTHING, progress.begin_refresh())
    assert deliveries.holders() == frozenset()
    progress.pend(progress.begin_ack((_at(3),), None, cumulative=False))
    assert deliveries.holders() == frozenset(), "what may have been acknowledged outside is held by no transaction"
    _read(deliveries, 4, 1, _holding(Ack(Position(1, 4))))
    assert deliveries.holders() == {TXN}
    deliveries.clear()
    assert deliveries.holders() == frozenset()


def test_what_was_acknowledged_before_someone_sought_holds_nothing() -> None:
    """A refresh reads acks before the cursor, and a seek may come in between."""
    acks = {TXN: (PendingAck(BRANCH, Ack(Position(1, 1)), State.OPEN, 1),)}
    assert OpenAcks(acks, 1).holder(Position(1, 1)) is not None
    assert OpenAcks(acks, 2).holder(Position(1, 1)) is None


def test_a_waiting_message_is_offered_with_the_count_that_is_remembered_later() -> None:
    """The higher of two counts remains, and messages keep their order."""
    deliveries = Deliveries()
    for entry in (1, 2, 3):
        _read(deliveries, entry)
    deliveries.remember({_at(2): 4, _at(3): 1, _at(9): 7})
    deliveries.remember({_at(2): 3})
    assert _waiting(deliveries) == [(1, 0, 0), (2, 0, 4), (3, 0, 1)]


def test_a_refresh_looks_at_acknowledged_messages_however_far_behind_they_are() -> None:
    """A refresh covers acknowledged messages and those that the stores name, but not read-ahead ones or gaps."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in range(1, 8):
        _read(deliveries, entry)
    progress.pend(progress.begin_ack((_at(5),), BRANCH, cumulative=False))
    (acking,) = progress.begin_ack((_at(6),), BRANCH, cumulative=False)
    assert [one.position for one in deliveries.concerned_by([(EARLIEST, Position(1, 1, 9))])] == [
        _at(1),
        _at(5),
        _at(6),
    ]
    assert progress.reconcile(CURSOR, NOTHING, progress.begin_refresh()) == {_at(5)}
    assert acking.skipped_by_refresh
    assert progress.undo_ack([acking])
    assert [
        one.position
        for one in deliveries.concerned_by([(EARLIEST, Position(1, 3, 9)), (Position(1, 4), Position(1, 5, 0))])
    ] == [_at(at) for at in range(1, 7)]
    deliveries.clear()
    assert deliveries.concerned_by([(EARLIEST, Position(9, 9))]) == []


def test_a_refresh_leaves_the_messages_in_holes_alone() -> None:
    """A refresh covers recent acks of others and messages held by transactions, but not gaps."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    before = unite(CURSOR, [Ack(Position(1, 2 * number)) for number in range(1, 500)])
    for entry in range(1, 1_000, 2):
        _read(deliveries, entry, size=2)
    after = unite(before, [Ack(Position(1, 501)), Ack(Position(1, 7), 2, frozenset({0})), Ack(Position(1, 801))])
    looked = [one.position for one in deliveries.concerned_by(changes_since(after, before))]
    assert looked == [_at(entry, index) for entry in (7, 501, 801) for index in (0, 1)]
    holding = _holding(Ack(Position(1, 901), 2))
    gone = progress.reconcile(after, holding, progress.begin_refresh(), before)
    assert gone == {_at(7), *(_at(entry, index) for entry in (501, 801) for index in (0, 1))}
    held = {_at(901, 0), _at(901, 1)}
    assert {one.position for one in deliveries.concerned_by(changes_since(after, after))} == held
    assert progress.reconcile(after, NOTHING, progress.begin_refresh(), after) == held


LEAVING: dict[str, Callable[[Deliveries, AckProgress], object]] = {
    "acknowledged": lambda _, progress: progress.begin_ack((_at(1),), None, cumulative=False),
    "acknowledged in a transaction": lambda _, progress: progress.begin_ack((_at(1),), BRANCH, cumulative=False),
    "acknowledged cumulatively": lambda _, progress: progress.begin_ack((_at(1),), BRANCH, cumulative=True),
    "given back": lambda deliveries, _: deliveries.requeue((_at(1),), 5, frozenset()),
    "left by its consumer": lambda deliveries, _: deliveries.detach(5),
    "finished by others": lambda deliveries, _: deliveries.forget([deliveries.messages[_at(1)]]),
    "found held by another transaction": lambda _, progress: progress.reconcile(
        CURSOR, _holding(Ack(Position(1, 1))), progress.begin_refresh()
    ),
    "found acknowledged": lambda _, progress: progress.reconcile(
        Cursor(1, Position(1, 1)), NOTHING, progress.begin_refresh()
    ),
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
def test_a_message_that_leaves_its_consumer_wakes_the_loop(leave: Callable[[Deliveries, AckProgress], object]) -> None:
    """Its consumer may have reached its limit, and another message may wait."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in (1, 2):
        _read(deliveries, entry)
    deliveries.deliver(_at(1), 5)
    deliveries.woken.clear()
    leave(deliveries, progress)
    assert deliveries.delivered[5] == 0
    assert deliveries.woken.is_set()


def test_a_message_that_waits_again_wakes_the_loop() -> None:
    """The message may have had no consumer when its refused ack began."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    _read(deliveries, 1)
    begun = progress.begin_ack((_at(1),), None, cumulative=False)
    deliveries.woken.clear()
    progress.undo_ack(begun)
    assert _waiting(deliveries) == [(1, 0, 0)]
    assert deliveries.woken.is_set()


def test_a_message_that_is_delayed_again_wakes_the_loop() -> None:
    """Otherwise, the loop may sleep until a later message is due."""
    deliveries = Deliveries(delays=True)
    progress = AckProgress(deliveries)
    delayed = EntryMessage(None, b"", delayed_until((), 100), 0, 0)
    deliveries.read(HeldMessage(_at(1), 1, delayed, "p", None), CURSOR, NOTHING)
    begun = progress.begin_ack((_at(1),), BRANCH, cumulative=False)
    assert deliveries.next_due_ms() is None
    deliveries.woken.clear()
    progress.undo_ack(begun)
    assert deliveries.next_due_ms() == 100
    assert deliveries.woken.is_set()
