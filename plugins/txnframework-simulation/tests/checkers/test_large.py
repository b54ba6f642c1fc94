"""Checkers over large histories: legal ones are accepted, and one event that is wrong among thousands is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from legal import history
from msgspec.structs import replace

from txnframework_simulation.checkers import INVARIANTS, check
from txnframework_simulation.history import (
    AckedMessage,
    AckFound,
    Acknowledge,
    AskAck,
    AskOutcome,
    Begin,
    Begun,
    Call,
    Commit,
    Compact,
    Consume,
    DrainCompacted,
    Drained,
    DrainSubscription,
    DrainTopic,
    Event,
    History,
    Operation,
    Outcome,
    Read,
    ReadSnapshot,
    Receive,
    Received,
    Recorder,
    Reply,
    SeenMessage,
    Send,
    Sent,
)

EVENTS = 12_000


@pytest.mark.parametrize("seed", range(3))
def test_legal(seed: int) -> None:
    """A legal history of thousands of events, with answers that are late or lost, breaks no rule."""
    assert check(history(seed, EVENTS)) == []


@dataclass
class Spoiling:
    """A legal history, to be changed in one place."""

    history: History

    def __post_init__(self) -> None:
        self.calls = self.history.calls()
        self.recorder = Recorder(count(10**6).__next__, self.history.events.append)
        outcomes = (call for call in self.calls if isinstance(call.reply, Outcome))
        self.states: dict[str, str] = {call.operation.txn: call.reply.state for call in outcomes}
        self.topic = self.last(DrainTopic)
        self.subscription = self.last(DrainSubscription)
        self.sent = {call.operation.value: call for call in self.of(Send) if isinstance(call.reply, Sent)}

    def of(self, operation: type) -> list[Call]:
        return [call for call in self.calls if isinstance(call.operation, operation)]

    def last(self, operation: type) -> Call:
        return self.of(operation)[-1]

    def answer(self, call: Call, reply: Reply) -> None:
        """Let a call have been answered otherwise."""
        self.history.events[call.ended] = replace(self.history.events[call.ended], reply=reply)

    def without(self, call: Call, seen: SeenMessage) -> None:
        self.answer(call, replace(call.reply, messages=tuple(one for one in call.reply.messages if one != seen)))

    def along_with(self, call: Call, seen: SeenMessage) -> None:
        self.answer(call, replace(call.reply, messages=(*call.reply.messages, seen)))

    def add(self, operation: Operation, reply: Reply | None = None) -> None:
        self.recorder.invoke("late", operation).ok(reply)

    def committed_writes(self) -> dict[str, list[SeenMessage]]:
        found: dict[str, list[SeenMessage]] = {}
        for seen in self.topic.reply.messages:
            if seen.txn is not None:
                found.setdefault(seen.txn, []).append(seen)
        return found

    def acked(self, state: str) -> list[Acknowledge]:
        """The acknowledgments that were confirmed in transactions of this outcome."""
        calls = (call.operation for call in self.of(Acknowledge) if call.ok and call.operation.txn)
        return [one for one in calls if self.states[one.txn] == state]

    def untouched(self) -> SeenMessage:
        """A message that no consumer tried to acknowledge."""
        tried = {one.place for call in self.of(Acknowledge) for one in call.operation.messages}
        return next(seen for seen in self.subscription.reply.messages if seen.place not in tried)


def inconsistent_positions(spoil: Spoiling) -> None:
    one, two = list(spoil.sent.values())[100:102]
    spoil.answer(one, two.reply)


def duplicate(spoil: Spoiling) -> None:
    seen = spoil.topic.reply.messages[100]
    spoil.along_with(spoil.topic, replace(seen, place=replace(seen.place, entry_id=10**6)))


def aborted_read(spoil: Spoiling) -> None:
    call = next(call for call in spoil.sent.values() if spoil.states.get(call.operation.txn or "") == "ABORTED")
    send = call.operation
    spoil.along_with(spoil.topic, SeenMessage(call.reply.place, send.value, send.key, send.txn))


def lost_write(spoil: Spoiling) -> None:
    lone = [seen for seen in spoil.topic.reply.messages if seen.txn is None and seen.value in spoil.sent]
    spoil.without(spoil.topic, lone[100])


def torn_transaction(spoil: Spoiling) -> None:
    several = [some for some in spoil.committed_writes().values() if len(some) > 1]
    spoil.without(spoil.topic, several[50][0])


def circular_information_flow(spoil: Spoiling) -> None:
    (one, some), (two, others) = list(spoil.committed_writes().items())[50:52]
    spoil.add(Receive("s", "k", one), Received((replace(others[0], incarnation=1),)))
    spoil.add(Receive("s", "k", two), Received((replace(some[0], incarnation=1),)))


def ack_lost(spoil: Spoiling) -> None:
    (acked,) = spoil.acked("COMMITTED")[-1].messages
    seen = next(one for one in spoil.topic.reply.messages if one.place == acked.place)
    spoil.along_with(spoil.subscription, replace(seen, incarnation=acked.incarnation))


def ack_leaked(spoil: Spoiling) -> None:
    counting = (ack for ack in spoil.of(Acknowledge) if spoil.states.get(ack.operation.txn or "") != "ABORTED")
    perhaps = {one.place for ack in counting for one in ack.operation.messages}
    aborted = {one.place for ack in spoil.acked("ABORTED") for one in ack.messages} - perhaps
    spoil.without(spoil.subscription, next(one for one in spoil.subscription.reply.messages if one.place in aborted))


def double_ack(spoil: Spoiling) -> None:
    ack = spoil.acked("COMMITTED")[50]
    spoil.add(Begin(), Begun("f" * 32))
    spoil.add(replace(ack, txn="f" * 32))
    spoil.add(Commit("f" * 32))


def early_ack(spoil: Spoiling) -> None:
    spoil.add(AskAck("s", spoil.untouched().place), AckFound("DELETED"))


def hasty_commit(spoil: Spoiling) -> None:
    spoil.add(Begin(), Begun("f" * 32))
    topic = spoil.topic.operation.topic
    spoil.recorder.invoke("late", Send(topic, "refused", txn="f" * 32)).fail("it was refused")
    spoil.add(Commit("f" * 32))


def zombie_operation(spoil: Spoiling) -> None:
    seen = spoil.untouched()
    txn = spoil.acked("COMMITTED")[50].txn
    spoil.add(Acknowledge("s", "k", (AckedMessage(seen.place, seen.incarnation),), txn=txn))


def outcome_flip(spoil: Spoiling) -> None:
    call = next(call for call in spoil.of(AskOutcome) if call.reply == Outcome("COMMITTED"))
    spoil.answer(call, Outcome("ABORTED"))


def stuck_reader(spoil: Spoiling) -> None:
    spoil.without(spoil.subscription, spoil.untouched())


def order_violation(spoil: Spoiling) -> None:
    read = next(call for call in reversed(spoil.of(Read)) if call.ok and len(call.reply.messages) > 1)
    spoil.answer(read, Received(tuple(reversed(read.reply.messages))))


def non_monotonic_read(spoil: Spoiling) -> None:
    reads = [call for call in spoil.of(Read) if call.ok and call.operation.reader == spoil.last(Read).operation.reader]
    spoil.without(reads[0], reads[0].reply.messages[3])


def missed_read(spoil: Spoiling) -> None:
    read = next(call for call in spoil.of(Read) if call.ok and len(call.reply.messages) > 10)
    spoil.without(read, next(seen for seen in read.reply.messages if seen.txn is None and seen.value in spoil.sent))


def fractured_snapshot(spoil: Spoiling) -> None:
    several = next(some for some in spoil.committed_writes().values() if len(some) > 1)
    shown = tuple(seen for seen in spoil.topic.reply.messages if seen != several[0])
    spoil.add(ReadSnapshot((spoil.topic.operation.topic,)), Received(shown))


def dead_letter(spoil: Spoiling) -> None:
    """A message lies among the dead letters, moved in a transaction, and is still delivered."""
    letters = "topic://public/default/letters"
    spoil.add(Consume((spoil.topic.operation.topic,), "s", "mover", "shared", "earliest", letters, 1))
    seen = spoil.untouched()
    at = replace(seen.place, segment=letters.replace("topic", "segment", 1) + "/0000-ffff-0")
    spoil.add(DrainTopic(letters), Drained((replace(seen, place=at, txn="e" * 32),)))
    spoil.add(spoil.subscription.operation, spoil.subscription.reply)


def wrong_compaction(spoil: Spoiling) -> None:
    last = {(seen.place.segment, seen.key): seen for seen in spoil.topic.reply.messages}
    lost, *kept = last.values()
    assert lost.key is not None
    spoil.add(Compact(spoil.topic.operation.topic))
    spoil.add(DrainCompacted(spoil.topic.operation.topic), Drained(tuple(kept)))


SPOILT: list[Callable[[Spoiling], None]] = [
    inconsistent_positions,
    duplicate,
    aborted_read,
    lost_write,
    torn_transaction,
    circular_information_flow,
    ack_lost,
    ack_leaked,
    double_ack,
    early_ack,
    hasty_commit,
    zombie_operation,
    outcome_flip,
    stuck_reader,
    order_violation,
    non_monotonic_read,
    missed_read,
    fractured_snapshot,
    dead_letter,
    wrong_compaction,
]


@pytest.fixture(scope="module")
def legal() -> list[Event]:
    return history(5, EVENTS, seeking=False).events


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_spoilt(spoil: Callable[[Spoiling], None], legal: list[Any]) -> None:
    """One thing that is wrong among thousands of events is found, and told by its name."""
    spoiling = Spoiling(History(list(legal)))
    spoil(spoiling)
    broken = {one.invariant for one in check(spoiling.history)}
    assert spoil.__name__.replace("_", " ").replace("non ", "non-") in broken


def test_every_rule_is_tried() -> None:
    """There is a large history that breaks each rule."""
    assert {spoil.__name__.replace("_", " ").replace("non ", "non-") for spoil in SPOILT} == set(INVARIANTS)


@pytest.mark.slow
def test_a_hundred_thousand_events() -> None:
    """Checking costs about as much as sorting: ten times as many events take some ten times as long, not a hundred."""
    assert check(history(1, 100_000)) == []
