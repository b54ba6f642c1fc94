"""The result of a checker for a history that violates its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txnframework_simulation.history import Call, Event


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of the rule ``invariant``: a sentence, and the events that show it, in order."""

    invariant: str
    sentence: str
    events: tuple[Event, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return the invariant and the sentence."""
        return f"{self.invariant}: {self.sentence}"


def violation(invariant: str, sentence: str, calls: Iterable[Call | None]) -> Violation:
    """Return a violation that the events of these calls show."""
    shown = {id(event): event for call in calls if call is not None for event in call.events}
    return Violation(invariant, sentence, tuple(sorted(shown.values(), key=lambda event: event.at_ns)))
