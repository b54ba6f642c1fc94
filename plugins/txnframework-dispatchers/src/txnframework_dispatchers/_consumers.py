"""The base of all dispatchers: the consumers of one subscription on one segment, their permits and messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txnframework.model.dispatch import Assignment, Candidate, ConsumerInfo
from txnframework.model.positions import Position


@dataclass(slots=True)
class AttachedConsumer:
    """A consumer, with ``permits``, the number of messages that it can take now, and its outstanding messages."""

    info: ConsumerInfo
    permits: int
    outstanding: set[Position] = field(default_factory=set)

    def take(self, candidate: Candidate) -> Assignment:
        """Assign a message to this consumer; it must have a permit."""
        self.permits -= 1
        self.outstanding.add(candidate.position)
        return Assignment(self.info.consumer_id, candidate.position)

    def take_first(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as this consumer can take."""
        return tuple(self.take(candidate) for candidate in waiting[: max(0, self.permits)])


class ConsumerDispatcher:
    """
    Base class of the dispatchers: attached consumers, their permits and their outstanding messages.

    The consumers are in the order in which they attached.
    """

    def __init__(self) -> None:
        self._consumers: dict[int, AttachedConsumer] = {}
        # The unreleased messages of detached consumers.
        self._left_behind: set[Position] = set()

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer with its initial permits; any number may be attached, and each keeps its state."""
        self._consumers.setdefault(consumer.consumer_id, AttachedConsumer(consumer, consumer.permits))

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """
        Remove a consumer; return its outstanding messages, an empty set if it is not attached.

        These messages must be released before they are assigned again.
        """
        gone = self._consumers.pop(consumer_id, None)
        if gone is None:
            return frozenset()
        self._left_behind |= gone.outstanding
        return frozenset(gone.outstanding)

    def permit(self, consumer_id: int, messages: int) -> None:
        """
        Let the consumer take ``messages`` more; one that stands by takes them when it becomes active.

        A detached consumer is ignored.
        """
        if consumer_id in self._consumers:
            self._consumers[consumer_id].permits += messages

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages, attached or detached."""
        self._left_behind -= positions
        for attached in self._consumers.values():
            attached.outstanding -= positions


class RoundRobin:
    """Selects in turn among the consumers that have permits."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, consumers: Iterable[AttachedConsumer]) -> AttachedConsumer | None:
        """Return the consumer with permits whose id follows the last selected one, cyclically, or None."""
        chosen = min((one for one in consumers if one.permits > 0), key=self._order, default=None)
        if chosen is not None:
            self._last = chosen.info.consumer_id
        return chosen

    def _order(self, attached: AttachedConsumer) -> tuple[bool, int]:
        consumer_id = attached.info.consumer_id
        return consumer_id <= self._last, consumer_id
