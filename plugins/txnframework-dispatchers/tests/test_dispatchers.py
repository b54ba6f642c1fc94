from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Candidate, ConsumerInfo, Position
from txnframework.plugin import load_plugins, verify_provider
from txnframework_dispatchers import ExclusiveDispatcher, FailoverDispatcher, KeySharedDispatcher, SharedDispatcher
from txnframework_dispatchers import plugin as hooks


def _waiting(*entries: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(Position(1, entry, 0), None, 0) for entry in entries)


def _keyed(*keys: bytes | None, first: int = 0) -> tuple[Candidate, ...]:
    return tuple(Candidate(Position(1, first + number, 0), key, 0) for number, key in enumerate(keys))


def _at(*entries: int) -> frozenset[Position]:
    return frozenset(Position(1, entry, 0) for entry in entries)


def _assigned(dispatcher: IDispatcher, waiting: tuple[Candidate, ...]) -> Sequence[tuple[int, int]]:
    return [(one.consumer_id, one.position.entry_id) for one in dispatcher.assign(waiting)]


def test_all_are_found_and_keep_the_contract() -> None:
    """What the entry point names can be opened under its subscription type."""
    registry = load_plugins([hooks])
    for name in ("exclusive", "failover", "shared", "key_shared"):
        verify_provider(IDispatcher, registry.dispatcher(name))


def test_exclusive_takes_one_consumer() -> None:
    """A second consumer gets an error that names the first; once the first has left, it is accepted."""
    dispatcher = ExclusiveDispatcher("billing")
    dispatcher.attach(ConsumerInfo(1, "first", permits=1))
    with pytest.raises(ConsumerBusy) as busy:
        dispatcher.attach(ConsumerInfo(2, "second"))
    assert (busy.value.subscription, busy.value.consumer) == ("billing", "first")
    assert _assigned(dispatcher, _waiting(0)) == [(1, 0)]
    assert dispatcher.detach(1) == {Position(1, 0, 0)}
    dispatcher.attach(ConsumerInfo(2, "second"))


def test_exclusive_assigns_in_order_as_far_as_permits_go() -> None:
    """No permit, no message; what is not assigned is offered again."""
    dispatcher = ExclusiveDispatcher("billing")
    assert _assigned(dispatcher, _waiting(0)) == []
    dispatcher.attach(ConsumerInfo(1, "one"))
    assert _assigned(dispatcher, _waiting(0, 1, 2)) == []
    dispatcher.permit(1, 2)
    assert _assigned(dispatcher, _waiting(0, 1, 2)) == [(1, 0), (1, 1)]
    assert _assigned(dispatcher, _waiting(2)) == []
    dispatcher.permit(9, 5)


def test_shared_deals_in_turn() -> None:
    """Each consumer in turn, also across calls; one without permits is passed over."""
    dispatcher = SharedDispatcher()
    for number in (1, 2, 3):
        dispatcher.attach(ConsumerInfo(number, str(number), permits=2 if number < 3 else 0))
    assert _assigned(dispatcher, _waiting(0)) == [(1, 0)]
    assert _assigned(dispatcher, _waiting(1, 2, 3, 4)) == [(2, 1), (1, 2), (2, 3)]


def test_shared_prefers_the_lowest_priority_number() -> None:
    """Others get something only when those before them can take no more."""
    dispatcher = SharedDispatcher()
    dispatcher.attach(ConsumerInfo(1, "later", priority=1, permits=5))
    dispatcher.attach(ConsumerInfo(2, "first", priority=0, permits=2))
    assert _assigned(dispatcher, _waiting(0, 1, 2)) == [(2, 0), (2, 1), (1, 2)]


def test_detaching_returns_what_was_not_released() -> None:
    """A consumer that leaves gives back what it had, without what was acknowledged meanwhile."""
    dispatcher = SharedDispatcher()
    dispatcher.attach(ConsumerInfo(1, "one", permits=3))
    dispatcher.assign(_waiting(0, 1, 2))
    dispatcher.released(frozenset({Position(1, 1, 0)}))
    assert dispatcher.detach(1) == {Position(1, 0, 0), Position(1, 2, 0)}
    assert dispatcher.detach(1) == frozenset()


@pytest.mark.parametrize("make", [lambda: ExclusiveDispatcher("billing"), FailoverDispatcher])
def test_what_a_consumer_left_behind_is_not_overtaken(make: Callable[[], IDispatcher]) -> None:
    """Until it was released nothing behind it is assigned; then the next consumer gets it first."""
    dispatcher = make()
    dispatcher.attach(ConsumerInfo(1, "first", permits=2))
    dispatcher.assign(_waiting(0, 1))
    dispatcher.released(_at(0))
    assert dispatcher.detach(1) == _at(1)
    dispatcher.attach(ConsumerInfo(2, "second", permits=2))
    assert _assigned(dispatcher, _waiting(2, 3)) == []
    dispatcher.released(_at(1))
    assert _assigned(dispatcher, _waiting(1, 2, 3)) == [(2, 1), (2, 2)]


def test_failover_has_one_active_consumer() -> None:
    """The others get nothing, whatever their priority; when it leaves the lowest number follows, then the first."""
    dispatcher = FailoverDispatcher()
    for number, priority in ((1, 5), (2, 7), (3, 1), (4, 1)):
        dispatcher.attach(ConsumerInfo(number, str(number), priority, permits=10))
    assert _assigned(dispatcher, _waiting(0, 1)) == [(1, 0), (1, 1)]
    dispatcher.detach(2)
    assert _assigned(dispatcher, _waiting(2)) == [(1, 2)]
    dispatcher.released(dispatcher.detach(1))
    assert _assigned(dispatcher, _waiting(0)) == [(3, 0)]
    dispatcher.released(dispatcher.detach(3))
    assert _assigned(dispatcher, _waiting(0)) == [(4, 0)]
    dispatcher.released(dispatcher.detach(4))
    assert _assigned(dispatcher, _waiting(0)) == []


def test_failover_assigns_as_far_as_the_active_one_takes() -> None:
    """Permits of one that stands by count when it is active, and not before."""
    dispatcher = FailoverDispatcher()
    dispatcher.attach(ConsumerInfo(1, "one", permits=1))
    dispatcher.attach(ConsumerInfo(2, "two", permits=1))
    dispatcher.permit(2, 1)
    assert _assigned(dispatcher, _waiting(0, 1, 2)) == [(1, 0)]
    assert _assigned(dispatcher, _waiting(1, 2)) == []
    dispatcher.released(dispatcher.detach(1))
    assert _assigned(dispatcher, _waiting(0, 1, 2)) == [(2, 0), (2, 1)]


def _key_shared(*permits: int) -> KeySharedDispatcher:
    dispatcher = KeySharedDispatcher()
    for number, some in enumerate(permits, start=1):
        dispatcher.attach(ConsumerInfo(number, f"consumer-{number}", permits=some))
    return dispatcher


KEYS = tuple(b"key %d" % number for number in range(40))


def test_a_key_has_one_consumer_at_a_time() -> None:
    """While messages of a key are outstanding, the key stays with its consumer; all consumers have some of the keys."""
    dispatcher = _key_shared(1000, 1000)
    owners = {entry: consumer for consumer, entry in _assigned(dispatcher, _keyed(*KEYS))}
    assert set(owners.values()) == {1, 2}
    dispatcher.attach(ConsumerInfo(3, "consumer-3", permits=1000))
    again = _assigned(dispatcher, _keyed(*KEYS, first=100))
    assert {entry - 100: consumer for consumer, entry in again} == owners
    dispatcher.released(_at(*range(40), *range(100, 140)))
    moved = {entry: consumer for consumer, entry in _assigned(dispatcher, _keyed(*KEYS))}
    assert set(moved.values()) == {1, 2, 3}
    assert all(moved[entry] in (3, owner) for entry, owner in owners.items())  # the others keep their keys


def test_a_key_whose_consumer_is_full_holds_up_itself_only() -> None:
    """Its messages wait, in order, for that consumer; other keys go on; a key that is free goes where there is room."""
    dispatcher = _key_shared(1)
    assert _assigned(dispatcher, _keyed(b"a")) == [(1, 0)]
    dispatcher.attach(ConsumerInfo(2, "two", permits=5))
    waiting = _keyed(b"a", b"b", b"a", b"b", first=1)
    assert _assigned(dispatcher, waiting) == [(2, 2), (2, 4)]
    dispatcher.permit(1, 1)
    assert _assigned(dispatcher, _keyed(b"a", None, b"a", first=1)) == [(1, 1), (2, 2)]
    dispatcher.released(_at(0))
    assert _assigned(dispatcher, _keyed(b"a", first=3)) == []  # one of two is outstanding still
    dispatcher.released(_at(1))
    assert _assigned(dispatcher, _keyed(b"a", first=3)) == [(2, 3)]


def test_the_keys_of_a_consumer_that_left() -> None:
    """They wait until it is known what became of their messages; then they go on from the first one."""
    dispatcher = _key_shared(2)
    dispatcher.assign(_keyed(b"a", b"a"))
    dispatcher.attach(ConsumerInfo(2, "two", permits=9))
    held = dispatcher.detach(1)
    assert held == _at(0, 1)
    assert _assigned(dispatcher, _keyed(b"a", b"b", first=2)) == [(2, 3)]
    dispatcher.released(held)
    assert _assigned(dispatcher, _keyed(b"a", b"a", b"a")) == [(2, 0), (2, 1), (2, 2)]


def test_messages_without_a_key_go_round() -> None:
    """Messages without a key go to the consumers in turn; an empty key is a key like others."""
    dispatcher = _key_shared(9, 9)
    assert _assigned(dispatcher, _keyed(None, None, None, None)) == [(1, 0), (2, 1), (1, 2), (2, 3)]
    (first,) = _assigned(dispatcher, _keyed(b"", first=4))
    (second,) = _assigned(dispatcher, _keyed(b"", first=5))
    assert first[0] == second[0]


def test_consumers_of_one_name_share_the_keys() -> None:
    """A name that was given twice does not leave one of them without work."""
    dispatcher = KeySharedDispatcher()
    for number in (1, 2):
        dispatcher.attach(ConsumerInfo(number, "same", permits=100))
    assert {consumer for consumer, _ in _assigned(dispatcher, _keyed(*KEYS))} == {1, 2}


def test_key_shared_remembers_outstanding_keys_only() -> None:
    """However many keys there were: what is done leaves nothing behind."""
    dispatcher = _key_shared(1000)
    dispatcher.assign(_keyed(*KEYS))
    dispatcher.released(_at(*range(40)))
    assert not dispatcher._assigned
    assert not dispatcher._key_at
