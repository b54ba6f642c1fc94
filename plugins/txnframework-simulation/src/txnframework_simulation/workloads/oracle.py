"""What oracles ask a history."""

from __future__ import annotations

from collections.abc import Callable

from txnframework_simulation.history import (
    Drained,
    DrainSubscription,
    DrainTopic,
    Event,
    History,
    Kind,
    Operation,
    Seen,
    Send,
)


def drained(history: History, topic: str) -> list[str] | None:
    """Return the values that a topic holds in the end; None: nobody looked, or could."""
    found = _drained(history, lambda asked: isinstance(asked, DrainTopic) and asked.topic == topic)
    return None if found is None else [seen.value for seen in found]


def drained_subscription(history: History, topic: str, subscription: str) -> list[str] | None:
    """Return the values that a subscription still delivers in the end, each once; None: nobody asked, or could."""
    found = _drained(
        history,
        lambda asked: (
            isinstance(asked, DrainSubscription) and (asked.topic, asked.subscription) == (topic, subscription)
        ),
    )
    return None if found is None else list(dict.fromkeys(seen.value for seen in found))


def sends_of(history: History, value: str) -> tuple[Event, ...]:
    """Return the events in which a value was sent."""
    return tuple(
        event for event in history.events if isinstance(event.operation, Send) and event.operation.value == value
    )


def _drained(history: History, wanted: Callable[[Operation], bool]) -> tuple[Seen, ...] | None:
    for call in reversed(history.calls()):
        if call.kind is Kind.OK and wanted(call.operation) and isinstance(call.reply, Drained):
            return call.reply.messages
    return None
