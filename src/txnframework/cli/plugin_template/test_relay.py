"""The subscription type ``relay`` keeps the rules of its role, and its own."""

from __future__ import annotations

from txnframework.model import Candidate, ConsumerInfo, Position
from txnframework.plugin import load_plugins
from txnframework.testing import DispatcherHarness, DispatcherSuite


class RelayHarness(DispatcherHarness):
    """Opens the dispatcher that the installed distribution provides."""

    provider = load_plugins().dispatcher("relay")


class TestRelay(DispatcherSuite):
    """IDispatcher: each test of the suite is a rule of the role."""

    harness = RelayHarness


def test_consumers_take_turns() -> None:
    """What the suite cannot know: the next consumer goes on when the messages of the one before it are done."""
    dispatcher = RelayHarness.provider.implementation()
    for consumer_id in (1, 2):
        dispatcher.attach(ConsumerInfo(consumer_id, f"consumer-{consumer_id}", permits=2))
    waiting = tuple(Candidate(Position(1, entry, 0), None, 0) for entry in range(4))
    first = dispatcher.assign(waiting)
    assert [one.consumer_id for one in first] == [1, 1]
    assert dispatcher.assign(waiting[2:]) == ()
    dispatcher.released(frozenset(one.position for one in first))
    assert [one.consumer_id for one in dispatcher.assign(waiting[2:])] == [2, 2]
