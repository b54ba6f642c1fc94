"""
Accounts: what transfers between them come to, as anybody finds them who reads all topics.

A transfer takes from one account what it gives to another, each a message of its own in a topic of its own. Whoever
reads one topic after the other comes to a certain place in each segment: that is a *cut*. Within a cut a transfer is
there with both of its messages or with none, so the sum over all accounts is 0. A transfer that has one of its places
within the cut and the other beyond is on the way, and is left out; in the end, when nothing is open, none is. So is
one of which a message was trimmed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from txnframework_simulation.checkers import Violation
from txnframework_simulation.checkers.sightings import trimmed_before
from txnframework_simulation.history import Call, Drained, DrainTopic, History, Place, Read, Received, Seen, Send, Sent
from txnframework_simulation.workloads.oracle import sends_of

NAME = "the sum over all accounts is constant"
AUDIT = "+"
"""Stands in the name of a reader behind that of the audit that it belongs to."""
TRANSFER = ":"
"""Stands in the value of a transfer's message before the amount, which the other message has with the other sign."""


@dataclass(slots=True)
class View:
    """What one client found that read all topics; ``final``: after everything had ended."""

    who: str
    final: bool
    topics: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)

    def reaches(self, place: Place, furthest: dict[str, Place]) -> bool:
        """Whether a place is within the cut, given how far it came in each segment."""
        return self.final or (place.segment in furthest and place <= furthest[place.segment])


def views(calls: Iterable[Call], topics: Iterable[str]) -> list[View]:
    """Return every audit that came to its end, and every client that drained all topics."""
    found: dict[str, View] = {}
    for call in calls:
        match call.operation, call.reply:
            case DrainTopic(topic=topic), Drained(messages=messages):
                view = found.setdefault(f"drain of {call.client}", View(call.client, True))
            case Read(topic=topic, reader=reader), Received(messages=messages) if AUDIT in reader:
                name = reader.partition(AUDIT)[0]
                view = found.setdefault(name, View(f"audit {name}", False))
            case _:
                continue
        view.topics.add(topic)
        view.seen += messages
    return [view for view in found.values() if view.topics >= set(topics)]


def violations(history: History, topics: Iterable[str]) -> list[Violation]:
    """Sum up the accounts in every view."""
    calls = history.calls()
    stands, trimmed = _places(calls), trimmed_before(calls)
    return [
        Violation(NAME, sentence, sends_of(history, value))
        for view in views(calls, topics)
        for value, sentence in _missing(view, stands, trimmed)
    ]


def _missing(view: View, stands: dict[str, dict[str, Place]], trimmed: dict[str, Place]) -> Iterator[tuple[str, str]]:
    """Yield each transfer of which one message is there and the other, though within the cut, is not."""
    furthest: dict[str, Place] = {}
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


def _places(calls: Iterable[Call]) -> dict[str, dict[str, Place]]:
    """Return, by transfer, where each of its messages was told to stand."""
    found: defaultdict[str, dict[str, Place]] = defaultdict(dict)
    for call in calls:
        if isinstance(call.operation, Send) and isinstance(call.reply, Sent) and TRANSFER in call.operation.value:
            found[call.operation.value.partition(TRANSFER)[0]][call.operation.value] = call.reply.place
    return dict(found)
