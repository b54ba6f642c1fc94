"""What consumers can take and what they have."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo
from txnframework.model.positions import Position


@dataclass(slots=True)
class Attached:
    """A consumer: ``permits`` messages it can take now, and the messages that it has."""

    info: ConsumerInfo
    permits: int
    has: set[Position] = field(default_factory=set)

    def take(self, candidate: Candidate) -> Assignment:
        """Assign a message to this consumer; it must have a permit."""
        self.permits -= 1
        self.has.add(candidate.position)
        return Assignment(self.info.consumer_id, candidate.position)


class Consumers:
    """The consumers of one subscription on one segment."""

    def __init__(self) -> None:
        self.by_id: dict[int, Attached] = {}

    def add(self, info: ConsumerInfo) -> None:
        """Add one, with the permits it brings; one that is there already keeps what it has."""
        self.by_id.setdefault(info.consumer_id, Attached(info, info.permits))

    def remove(self, consumer_id: int) -> frozenset[Position]:
        """Remove one; return what it had, nothing if there is no such consumer."""
        gone = self.by_id.pop(consumer_id, None)
        return frozenset() if gone is None else frozenset(gone.has)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let one take more; a consumer that has gone takes nothing."""
        if consumer_id in self.by_id:
            self.by_id[consumer_id].permits += messages

    def release(self, positions: frozenset[Position]) -> None:
        """Nobody has these any more."""
        for attached in self.by_id.values():
            attached.has -= positions
