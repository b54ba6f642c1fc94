"""Orders that are handled: ends of a run that are accepted, and ends that are not."""

from __future__ import annotations

from itertools import count

import pytest

from txnframework_simulation.history import (
    Consume,
    Drained,
    DrainSubscription,
    DrainTopic,
    Handle,
    History,
    MessagePosition,
    Recorder,
    SeenMessage,
    Send,
)
from txnframework_simulation.workloads.chain import BILLING
from txnframework_simulation.workloads.handlers import (
    COUNTS,
    INVARIANT,
    INVOICES,
    LETTERS,
    ORDERS,
    Handlers,
    HandlersOptions,
)

T = f"{1:032x}"


def seen(value: str, redeliveries: int = 0) -> SeenMessage:
    place = MessagePosition(f"{ORDERS.replace('topic', 'segment', 1)}/0000-ffff-0", 0, 0)
    return SeenMessage(place, value, None, None, 1, redeliveries)


class Shop:
    """A run, and what a client finds in the end."""

    def __init__(self) -> None:
        self.history = History()
        self.recorder = Recorder(count(1).__next__, self.history.events.append)

    def end(
        self,
        orders: tuple[str, ...] = (),
        invoices: tuple[str, ...] = (),
        letters: tuple[str, ...] = (),
        left: tuple[str, ...] = (),
    ) -> Shop:
        """Drain the topics, and the subscription."""
        for one in orders:
            self.recorder.invoke("c", Send(ORDERS, one)).ok()
        for topic, values in ((ORDERS, orders), (INVOICES, invoices), (LETTERS, letters)):
            self.recorder.invoke("c", DrainTopic(topic)).ok(Drained(tuple(map(seen, values))))
        self.recorder.invoke("c", DrainSubscription(ORDERS, BILLING)).ok(Drained(tuple(map(seen, left))))
        return self

    def join(self, consumer: str) -> Shop:
        """Join the subscription."""
        self.recorder.invoke("c", Consume((ORDERS,), BILLING, consumer, "shared", "earliest", LETTERS, 8)).ok()
        return self

    def handle(self, consumer: str, redeliveries: int) -> Shop:
        """Call the handler of a consumer for the only order."""
        self.recorder.invoke("c", Handle(BILLING, consumer, seen("a", redeliveries), T)).unknown("Refused: a")
        return self

    def violations(self, *, durable_counts: bool = True) -> list[tuple[str, str]]:
        """Return each violated rule with its sentence."""
        workload = Handlers(HandlersOptions(durable_counts=durable_counts))
        return [(one.invariant, one.sentence) for one in workload.violations(self.history)]


ACCEPTED = {
    "nothing": Shop().end(),
    "handled": Shop().end(("a",), ("a>1",)),
    "a dead letter": Shop().end(("a?",), letters=("a?",)),
    "not drained": Shop(),
    "other messages": Shop().end(("a",), ("a>1", "x"), ("y",)),
    "growing counts": Shop().join("k").handle("k", 0).handle("k", 1).join("l").handle("l", 1).handle("l", 2),
    "the first count": Shop().join("k").handle("k", 0).join("l").handle("l", 0),
    "a consumer that was there before": Shop().join("k").join("l").handle("k", 2).handle("l", 1),
}
REJECTED = {
    "order a is still delivered": Shop().end(("a",), ("a>1",), left=("a",)),
    "order a has 2 invoices and is 0 times a dead letter": Shop().end(("a",), ("a>1", "a>2")),
    "order a has 0 invoices and is 0 times a dead letter": Shop().end(("a",)),
    "order a? has 0 invoices and is 2 times a dead letter": Shop().end(("a?",), letters=("a?", "a?")),
    "order a? has 1 invoices and is 1 times a dead letter": Shop().end(("a?",), ("a?>1",), ("a?",)),
    "order a is a dead letter, although its handler does not always fail": Shop().end(("a",), letters=("a",)),
    "order a? has an invoice, although its handler always fails": Shop().end(("a?",), ("a?>1",)),
    "order b has an invoice and cannot be read": Shop().end(("a",), ("a>1", "b>1")),
}


@pytest.mark.parametrize("shop", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(shop: Shop) -> None:
    """Each order is handled once or is a dead letter once, and its counts grow."""
    assert shop.violations() == []


@pytest.mark.parametrize("sentence", REJECTED)
def test_rejected(sentence: str) -> None:
    """The sentence names the order and what is wrong about it."""
    assert REJECTED[sentence].violations() == [(INVARIANT, sentence)]


def test_a_count_that_begins_again() -> None:
    """A consumer that joins later gets at least the count of an earlier delivery, if leases are not lost."""
    shop = Shop().join("k").handle("k", 2).join("l").handle("l", 1)
    assert shop.violations() == [(COUNTS, "order a was delivered with count 2, and later with 1")]
    assert shop.violations(durable_counts=False) == []
