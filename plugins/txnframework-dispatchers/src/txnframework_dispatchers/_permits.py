"""Permits and outstanding messages of consumers."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo
from txnframework.model.positions import Position


@dataclass(slots=True)
class Attached:
    """A consumer, with ``permits``, the number of messages that it can take now, and its outstanding messages."""

    info: ConsumerInfo
    permits: int
    has: set[Position] = field(default_factory=set)

    def take(self, candidate: Candidate) -> Assignment:
        """Assign a message to this consumer; it must have a permit."""
        self.permits -= 1
        self.has.add(candidate.position)
        return Assignment(self.info.consumer_id, candidate.position)

    def take_first(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as this consumer can take."""
        return tuple(self.take(candidate) for candidate in waiting[: max(0, self.permits)])


class Consumers:
    """
    The consumers of one subscription on one segment, in the order in which they attached.

    ``left_behind`` holds the unreleased messages of detached consumers.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Attached] = {}
        self.left_behind: set[Position] = set()

    def add(self, info: ConsumerInfo) -> None:
        """Add a consumer with its initial permits; one that is attached already keeps its state."""
        self.by_id.setdefault(info.consumer_id, Attached(info, info.permits))

    def remove(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages, an empty set if it is not attached."""
        gone = self.by_id.pop(consumer_id, None)
        if gone is None:
            return frozenset()
        self.left_behind |= gone.has
        return frozenset(gone.has)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let a consumer take ``messages`` more; a detached consumer is ignored."""
        if consumer_id in self.by_id:
            self.by_id[consumer_id].permits += messages

    def release(self, positions: frozenset[Position]) -> None:
        """Remove these messages from all consumers, attached or detached."""
        self.left_behind -= positions
        for attached in self.by_id.values():
            attached.has -= positions
