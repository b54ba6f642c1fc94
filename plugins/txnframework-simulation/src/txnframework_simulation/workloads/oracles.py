"""
Oracles: the final state that a history shows, and a check that transfers between accounts are complete.

A transfer takes an amount from one account and adds it to another. Each of the two messages goes to a topic of its own.
A client that reads all topics, one after the other, reaches a certain position in each segment: these positions are a
*cut*. Within a cut, a transfer is present with both messages or with none, so the sum over all accounts is 0.

Two kinds of transfers are left out: those with only one message within the cut, and those with a trimmed message. In
the end, when no transaction is open, no transfer has a message beyond the cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from txnframework_simulation.checkers import Violation
from txnframework_simulation.checkers.observations import trimmed_before
from txnframework_simulation.history import (
    Call,
    Drained,
    DrainSubscription,
    DrainTopic,
    Event,
    EventKind,
    History,
    MessagePosition,
    Operation,
    Read,
    Received,
    SeenMessage,
    Send,
    Sent,
)


def drained(history: History, topic: str) -> list[str] | None:
    """Return the values of a topic in its final drain, or None if the topic was not drained."""
    found = _drained(history, lambda asked: isinstance(asked, DrainTopic) and asked.topic == topic)
    return None if found is None else [seen.value for seen in found]


def drained_subscription(history: History, topic: str, subscription: str) -> list[str] | None:
    """Return the values in the final drain of a subscription, each once, or None if it was not drained."""
    found = _drained(
        history,
        lambda asked: (
            isinstance(asked, DrainSubscription) and (asked.topic, asked.subscription) == (topic, subscription)
        ),
    )
    return None if found is None else list(dict.fromkeys(seen.value for seen in found))


def sends_of(history: History, value: str) -> tuple[Event, ...]:
    """Return the events that sent a value."""
    return tuple(
        event for event in history.events if isinstance(event.operation, Send) and event.operation.value == value
    )


def _drained(history: History, wanted: Callable[[Operation], bool]) -> tuple[SeenMessage, ...] | None:
    for call in reversed(history.calls()):
        if call.kind is EventKind.OK and wanted(call.operation) and isinstance(call.reply, Drained):
            return call.reply.messages
    return None


ACCOUNTS_INVARIANT = "the sum over all accounts is constant"
AUDIT = "+"
"""Separates, in the name of a reader, the name of its audit and a number."""
TRANSFER = ":"
"""
Precedes the amount in the value of a transfer's message.

The two messages of a transfer have opposite signs.
"""


@dataclass(slots=True)
class AccountView:
    """
    The messages found by one client that read all topics.

    ``final``: it read them after everything had ended.
    """

    who: str
    final: bool
    topics: set[str] = field(default_factory=set)
    seen: list[SeenMessage] = field(default_factory=list)

    def reaches(self, place: MessagePosition, furthest: dict[str, MessagePosition]) -> bool:
        """Whether a place is within the cut; ``furthest``: the last place that the client reached in each segment."""
        return self.final or (place.segment in furthest and place <= furthest[place.segment])


def account_views(calls: Iterable[Call], topics: Iterable[str]) -> list[AccountView]:
    """Return every completed audit, and every client that drained all topics."""
    found: dict[str, AccountView] = {}
    for call in calls:
        match call.operation, call.reply:
            case DrainTopic(topic=topic), Drained(messages=messages):
                view = found.setdefault(f"drain of {call.client}", AccountView(call.client, True))
            case Read(topic=topic, reader=reader), Received(messages=messages) if AUDIT in reader:
                name = reader.partition(AUDIT)[0]
                view = found.setdefault(name, AccountView(f"audit {name}", False))
            case _:
                continue
        view.topics.add(topic)
        view.seen += messages
    return [view for view in found.values() if view.topics >= set(topics)]


def account_violations(history: History, topics: Iterable[str]) -> list[Violation]:
    """Check the sum of the accounts in every view."""
    calls = history.calls()
    stands, trimmed = _transfer_places(calls), trimmed_before(calls)
    return [
        Violation(ACCOUNTS_INVARIANT, sentence, sends_of(history, value))
        for view in account_views(calls, topics)
        for value, sentence in _missing_transfers(view, stands, trimmed)
    ]


def _missing_transfers(
    view: AccountView, stands: dict[str, dict[str, MessagePosition]], trimmed: dict[str, MessagePosition]
) -> Iterator[tuple[str, str]]:
    """Yield each transfer with one message present and the other missing, although that one is within the cut."""
    furthest: dict[str, MessagePosition] = {}
    for seen in view.seen:
        furthest[seen.place.segment] = max(furthest.get(seen.place.segment, seen.place), seen.place)
    legs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for seen in view.seen:
        transfer, sign, amount = seen.value.partition(TRANSFER)
        if sign:
            legs[transfer][seen.value] = int(amount)
    for transfer, amounts in legs.items():
        if not sum(amounts.values()):
            continue
        places = [place for value, place in stands.get(transfer, {}).items() if value not in amounts]
        if any(place.segment in trimmed and place < trimmed[place.segment] for place in places):
            continue
        if view.final or any(view.reaches(place, furthest) for place in places):
            (value, found), *_ = amounts.items()
            yield (
                value,
                f"{view.who} found of transfer {transfer} only {found:+d}: all accounts together have"
                f" {sum(amounts.values()):+d} that was never there",
            )


def _transfer_places(calls: Iterable[Call]) -> dict[str, dict[str, MessagePosition]]:
    """Return, by transfer, the position of each of its messages."""
    found: defaultdict[str, dict[str, MessagePosition]] = defaultdict(dict)
    for call in calls:
        if isinstance(call.operation, Send) and isinstance(call.reply, Sent) and TRANSFER in call.operation.value:
            found[call.operation.value.partition(TRANSFER)[0]][call.operation.value] = call.reply.place
    return dict(found)
