"""The sum over all accounts: views of them that are accepted, and views that are not."""

from __future__ import annotations

from itertools import count

import pytest

from txnframework_simulation.history import (
    Drained,
    DrainTopic,
    History,
    MessagePosition,
    Read,
    Received,
    Recorder,
    SeenMessage,
    Send,
    Sent,
)
from txnframework_simulation.workloads.oracles import account_violations

SAVINGS, WALLETS = "topic://public/default/savings", "topic://public/default/wallets"
FROM, TO = "t1:-5", "t1:5"
T = f"{1:032x}"


def seen(value: str, entry: int, topic: str) -> SeenMessage:
    return SeenMessage(MessagePosition(f"{topic.replace('topic', 'segment', 1)}/0000-ffff-0", 0, entry), value, None, T)


TAKEN, GIVEN, LATER = seen(FROM, 0, SAVINGS), seen(TO, 3, WALLETS), seen("other", 4, WALLETS)


class Ledger:
    """A transfer from savings to wallets, and what an observer reads of it."""

    def __init__(self) -> None:
        self.history = History()
        self.recorder = Recorder(count(1).__next__, self.history.events.append)
        for one in (TAKEN, GIVEN):
            self.recorder.invoke("c", Send(one.place.topic, one.value, None, T)).ok(Sent(one.place))

    def audit(self, name: str, savings: tuple[SeenMessage, ...], wallets: tuple[SeenMessage, ...] | None) -> Ledger:
        for number, (topic, found) in enumerate(((SAVINGS, savings), (WALLETS, wallets))):
            if found is not None:
                self.recorder.invoke("c", Read(topic, f"{name}+{number}")).ok(Received(found))
        return self

    def drain(
        self,
        savings: tuple[SeenMessage, ...],
        wallets: tuple[SeenMessage, ...],
        trimmed: tuple[MessagePosition, ...] = (),
    ) -> Ledger:
        for topic, found in ((SAVINGS, savings), (WALLETS, wallets)):
            self.recorder.invoke("c", DrainTopic(topic)).ok(Drained(found, trimmed))
        return self

    def sentences(self) -> list[str]:
        return [one.sentence for one in account_violations(self.history, (SAVINGS, WALLETS))]


ACCEPTED = {
    "nothing of it": Ledger().audit("a", (), (LATER,)),
    "all of it": Ledger().audit("a", (TAKEN,), (GIVEN, LATER)).drain((TAKEN,), (GIVEN, LATER)),
    "on the way": Ledger().audit("a", (TAKEN,), ()),
    "not all topics": Ledger().audit("a", (TAKEN,), None),
    "half of it trimmed": Ledger().audit("a", (), (GIVEN,)).drain((), (GIVEN,), (seen("x", 1, SAVINGS).place,)),
}
REJECTED = {
    "within the cut": Ledger().audit("a", (TAKEN,), (LATER,)),
    "in one audit of two": Ledger().audit("a", (TAKEN,), (GIVEN,)).audit("b", (TAKEN,), (LATER,)),
    "in the end": Ledger().drain((TAKEN,), ()),
}


@pytest.mark.parametrize("ledger", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(ledger: Ledger) -> None:
    """Within the cut of every audit the sum is constant."""
    assert ledger.sentences() == []


@pytest.mark.parametrize("ledger", REJECTED.values(), ids=REJECTED)
def test_rejected(ledger: Ledger) -> None:
    """A partial transfer, within a cut or at the end, is reported with the missing part."""
    (sentence,) = ledger.sentences()
    assert "only -5: all accounts together have -5 that was never there" in sentence
