"""Who saw which message when."""

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
    Place,
    Read,
    Receive,
    Received,
    Seen,
)

EARLIEST = "earliest"
READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A message as it came with the answer to one call."""

    seen: Seen
    call: Call

    @property
    def at(self) -> int:
        """The event by which it came."""
        return self.call.ended


@dataclass(slots=True)
class Reading:
    """
    What one reader got, in order, of all that is committed; a drain of a topic is a reader too.

    ``whole``: it was opened at ``began`` or later, and came to where the topic then ended.
    """

    name: str
    topic: str
    from_earliest: bool
    began: int
    sightings: list[Sighting] = field(default_factory=list)
    whole: bool = False

    @property
    def furthest(self) -> dict[str, Place]:
        """The last place that it came to in each segment that it got something of."""
        found: dict[str, Place] = {}
        for sighting in self.sightings:
            place = sighting.seen.place
            found[place.segment] = max(found.get(place.segment, place), place)
        return found


@dataclass(slots=True)
class Sightings:
    """
    All of them, in the order in which they came.

    ``committed`` are those that passed for committed, ``others`` those that came as not committed.
    """

    committed: list[Sighting] = field(default_factory=list)
    others: list[Sighting] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Sightings:
        """Return what these calls brought."""
        found = cls()
        readings: dict[str, Reading] = {}
        for call in sorted(calls, key=lambda one: one.ended):
            match call.operation, call.reply:
                case Receive() | DrainSubscription() | DrainConsumer() | DrainCompacted(), Received(
                    messages=messages
                ) | Drained(messages=messages):
                    found._take(call, messages)
                case Read() as read, Received(messages=messages):
                    some = found._take(call, messages)
                    if read.isolation == READ_COMMITTED and not read.compacted:
                        reading = readings.get(read.reader)
                        if reading is None:
                            name = f"reader {read.reader}"
                            reading = Reading(name, read.topic, read.start == EARLIEST, call.began, whole=read.whole)
                            readings[read.reader] = reading
                        reading.sightings += some
                case DrainTopic(topic=topic), Drained(messages=messages):
                    some = found._take(call, messages)
                    found.readings.append(Reading(f"the drain of {topic}", topic, True, call.began, some, True))
        found.readings += readings.values()
        return found

    def _take(self, call: Call, messages: tuple[Seen, ...]) -> list[Sighting]:
        some = [Sighting(seen, call) for seen in messages]
        for sighting in some:
            (self.committed if sighting.seen.committed else self.others).append(sighting)
        return some


def trimmed_before(calls: Iterable[Call]) -> dict[str, Place]:
    """Return the first place that was left of each segment that was trimmed, as the drains told."""
    found: dict[str, Place] = {}
    for call in calls:
        if isinstance(call.reply, Drained):
            for first in call.reply.trimmed:
                found[first.segment] = max(found.get(first.segment, first), first)
    return found


def by_segment(sightings: Iterable[Sighting]) -> dict[str, list[Sighting]]:
    """Return sightings by the segments of the messages, each in the order given."""
    found: defaultdict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        found[sighting.seen.place.segment].append(sighting)
    return found
