"""Delivered messages that others finished: the position from which a cumulative acknowledgment is refused."""

from __future__ import annotations

from txnframework.broker.dispatch import claims
from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.claims import Claims
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.model.acks import Ack, PendingAck
from txnframework.model.cursor import Cursor, unite
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position
from txnframework.model.transactions import State

CONSUMER, OTHER = 1, 2
CURSOR = Cursor(1, Position(1, -1))
NOTHING = OpenAcks({}, 1)


def _at(entry: int) -> Position:
    return Position(1, entry)


def _message(entry: int) -> Position:
    return Position(1, entry, 0)


def _branch(number: int) -> Branch:
    return Branch(TxnID(0, number))


class Outcomes(dict[Branch, bool]):
    """The known outcomes."""

    def counts(self, branch: Branch) -> bool | None:
        return self.get(branch)


def _given(outcomes: Outcomes, entries: int) -> Deliveries:
    """Return deliveries of which a consumer was given everything."""
    deliveries = Deliveries(outcomes.counts)
    for entry in range(entries):
        deliveries.read(HeldMessage(_message(entry), 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, NOTHING)
        _hand_out(deliveries, entry, CONSUMER)
    return deliveries


def _hand_out(deliveries: Deliveries, entry: int, consumer: int) -> None:
    held = deliveries.deliver(_message(entry), consumer)
    assert held is not None
    assert deliveries.hand_out(consumer, held.position, held.delivery)


def _look(progress: AckProgress, *done: int, pending: OpenAcks = NOTHING) -> None:
    progress.reconcile(unite(CURSOR, [Ack(_at(entry)) for entry in done]), pending, progress.begin_refresh())


def _lost(deliveries: Deliveries, upto: int, consumer: int = CONSUMER) -> Position | None:
    return deliveries.claims.first_lost(consumer, _message(upto))


def _claimed(progress: AckProgress, upto: int) -> list[int]:
    return [one.position.entry_id for one in progress.claimed(CONSUMER, _message(upto))]


def test_others_finished_it() -> None:
    """The first such message is remembered for the consumer that received it, until the consumer requests
    redelivery.
    """
    deliveries = _given(Outcomes(), 5)
    progress = AckProgress(deliveries)
    _look(progress, 1, 3)
    assert (_lost(deliveries, 0), _lost(deliveries, 1), _lost(deliveries, 4)) == (None, _message(1), _message(1))
    assert _lost(deliveries, 4, OTHER) is None
    assert _claimed(progress, 3) == [0, 2]
    deliveries.requeue([_message(0), _message(2)], CONSUMER, frozenset())
    assert _claimed(progress, 3) == [0, 2]
    deliveries.forget_received(CONSUMER)
    assert _lost(deliveries, 4) is None
    assert _claimed(progress, 4) == [4]


def test_the_consumer_itself_finished_it() -> None:
    """Acks in a committed transaction count, known before or after the message was found finished; so do plain acks."""
    outcomes = Outcomes()
    deliveries = _given(outcomes, 5)
    progress = AckProgress(deliveries)
    for entry in range(3):
        progress.pend(progress.begin_ack([_message(entry)], _branch(entry), cumulative=False))
    outcomes[_branch(0)] = True
    deliveries.forget(progress.begin_ack([_message(3)], None, cumulative=False))
    assert _claimed(progress, 4) == [1, 2, 4]
    assert progress.undecided(CONSUMER, _message(4)) == {_branch(1), _branch(2)}
    _look(progress, 0, 1, 2, 3)
    assert progress.undecided(CONSUMER, _message(1)) == {_branch(1)}
    assert _lost(deliveries, 4) == _message(1), "nobody knows it yet"
    outcomes |= {_branch(1): True, _branch(2): False}
    assert progress.undecided(CONSUMER, _message(1)) == {_branch(1)}
    assert (_lost(deliveries, 1), _lost(deliveries, 4)) == (None, _message(2))


def test_its_own_was_refused_or_given_back() -> None:
    """Then another consumer finished the message, even if a refresh skipped it during the ack."""
    outcomes = Outcomes({_branch(1): True, _branch(2): True})
    deliveries = _given(outcomes, 3)
    progress = AckProgress(deliveries)
    refused = progress.begin_ack([_message(0)], _branch(1), cumulative=False)
    _look(progress, 0)
    progress.undo_ack(refused)
    progress.pend(progress.begin_ack([_message(1)], _branch(2), cumulative=False))
    others = PendingAck(_branch(9), Ack(_at(1)), State.OPEN, 1)
    _look(progress, pending=OpenAcks({others.branch.txn_id: (others,)}, 1))
    assert _claimed(progress, 2) == [0, 1, 2]
    _look(progress, 0, 1)
    assert _lost(deliveries, 2) == _message(0)
    deliveries.claims.acknowledged(CONSUMER, _message(0))
    assert _lost(deliveries, 2) == _message(0), "up to there it was its own; behind it nobody remembers where"
    deliveries.claims.acknowledged(CONSUMER, _message(1))
    assert _lost(deliveries, 2) is None


def test_an_aborted_one_is_not_its_own_any_more() -> None:
    """A message that returned from an aborted transaction and was then finished by others counts as theirs."""
    deliveries = _given(Outcomes(), 2)
    progress = AckProgress(deliveries)
    progress.pend(progress.begin_ack([_message(0)], _branch(1), cumulative=True))
    _look(progress)
    assert _claimed(progress, 1) == [0, 1]
    assert not progress.undecided(CONSUMER, _message(1))
    _look(progress, 0)
    assert _lost(deliveries, 1) == _message(0)


def test_another_consumer_has_it_now() -> None:
    """A cumulative ack does not cover messages that another consumer has now; nor does that of a former consumer."""
    deliveries = _given(Outcomes(), 3)
    progress = AckProgress(deliveries)
    deliveries.requeue([_message(1)], CONSUMER, frozenset())
    _hand_out(deliveries, 1, OTHER)
    assert (_lost(deliveries, 0), _lost(deliveries, 2)) == (None, _message(1))
    assert (_lost(deliveries, 2, OTHER), _claimed(progress, 2)) == (None, [0, 2])
    deliveries.detach(CONSUMER)
    _hand_out(deliveries, 0, OTHER)
    assert _lost(deliveries, 2) is None
    assert progress.claimed(OTHER, _message(2)) == [deliveries.messages.get(_message(number)) for number in (0, 1)]


def test_what_nobody_has_seen() -> None:
    """A cumulative ack does not cover delivered messages that were finished or taken back before the user saw them."""
    deliveries = Deliveries()
    progress = AckProgress(deliveries)
    for entry in range(3):
        deliveries.read(HeldMessage(_message(entry), 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, NOTHING)
    first, second, third = (deliveries.deliver(_message(entry), CONSUMER) for entry in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    _look(progress, 0)
    deliveries.requeue([_message(1)], CONSUMER, frozenset())
    assert not deliveries.hand_out(CONSUMER, first.position, first.delivery)
    assert not deliveries.hand_out(CONSUMER, second.position, second.delivery)
    assert deliveries.hand_out(CONSUMER, third.position, third.delivery)
    assert (_lost(deliveries, 2), _claimed(progress, 2)) == (None, [2])


def test_what_is_remembered_is_bounded() -> None:
    """The number of remembered transactions is limited: known outcomes are dropped first, some of the others
    are queried.
    """
    outcomes = Outcomes()
    kept = Claims(outcomes.counts)
    for number in range(claims.UNDECIDED_MAX):
        kept.finished(CONSUMER, _message(number), _branch(number))
    assert not kept.crowded()
    kept.finished(CONSUMER, _message(0), _branch(claims.UNDECIDED_MAX))
    assert len(kept.crowded()) == claims.UNDECIDED_MAX + 1
    outcomes |= {_branch(number): True for number in range(10)}
    assert not kept.crowded()
    assert len(kept.undecided(CONSUMER, _message(claims.UNDECIDED_MAX))) == claims.UNDECIDED_MAX - 9
    kept.forget(CONSUMER)
    assert not kept.undecided(CONSUMER, _message(claims.UNDECIDED_MAX))
