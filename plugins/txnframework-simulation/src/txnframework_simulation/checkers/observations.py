"""Observations: which client received which message at which event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from txnframework_simulation.history import (
    Call,
    DrainCompacted,
    DrainConsumer,
    Drained,
    DrainSubscription,
    DrainTopic,
    MessagePosition,
    Read,
    ReadSnapshot,
    Receive,
    Received,
    SeenMessage,
)

EARLIEST = "earliest"
READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Observation:
    """A message in the reply to one call."""

    seen: SeenMessage
    call: Call

    @property
    def at(self) -> int:
        """The event at which the reply arrived."""
        return self.call.ended


@dataclass(slots=True)
class ReaderView:
    """
    The committed messages that one reader received, in order; a drain of a topic is a reader too.

    ``whole``: the reader was opened at ``began`` or later, and reached the end that the topic had at that time.
    """

    name: str
    topic: str
    from_earliest: bool
    began: int
    observations: list[Observation] = field(default_factory=list)
    whole: bool = False

    @property
    def furthest(self) -> dict[str, MessagePosition]:
        """The last place that the reader reached in each segment, for segments from which it received a message."""
        found: dict[str, MessagePosition] = {}
        for observation in self.observations:
            place = observation.seen.place
            found[place.segment] = max(found.get(place.segment, place), place)
        return found


@dataclass(slots=True)
class Observations:
    """
    All observations of a history, in the order in which they were made.

    ``committed``: the messages were marked as committed. ``others``: they were not.
    """

    committed: list[Observation] = field(default_factory=list)
    others: list[Observation] = field(default_factory=list)
    views: list[ReaderView] = field(default_factory=list)

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Observations:
        """Return the observations in the replies to these calls."""
        found = cls()
        views: dict[str, ReaderView] = {}
        for call in sorted(calls, key=lambda one: one.ended):
            match call.operation, call.reply:
                case (
                    Receive() | ReadSnapshot() | DrainSubscription() | DrainConsumer() | DrainCompacted(),
                    Received(messages=messages) | Drained(messages=messages),
                ):
                    found._take(call, messages)
                case Read() as read, Received(messages=messages):
                    some = found._take(call, messages)
                    if read.isolation == READ_COMMITTED and not read.compacted:
                        view = views.get(read.reader)
                        if view is None:
                            name = f"reader {read.reader}"
                            view = ReaderView(name, read.topic, read.start == EARLIEST, call.began, whole=read.whole)
                            views[read.reader] = view
                        view.observations += some
                case DrainTopic(topic=topic), Drained(messages=messages):
                    some = found._take(call, messages)
                    found.views.append(ReaderView(f"the drain of {topic}", topic, True, call.began, some, True))
        found.views += views.values()
        return found

    def _take(self, call: Call, messages: tuple[SeenMessage, ...]) -> list[Observation]:
        some = [Observation(seen, call) for seen in messages]
        for observation in some:
            (self.committed if observation.seen.committed else self.others).append(observation)
        return some


def trimmed_before(calls: Iterable[Call]) -> dict[str, MessagePosition]:
    """Return the first remaining place of each trimmed segment, as the drains reported it."""
    found: dict[str, MessagePosition] = {}
    for call in calls:
        if isinstance(call.reply, Drained):
            for first in call.reply.trimmed:
                found[first.segment] = max(found.get(first.segment, first), first)
    return found


def by_segment(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """Return the observations by segment of their messages, in the given order."""
    found: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        found[observation.seen.place.segment].append(observation)
    return found
