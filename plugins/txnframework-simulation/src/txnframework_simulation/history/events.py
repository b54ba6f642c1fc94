"""Events, and the calls that consist of two of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from txnframework.errors import Corrupt
from txnframework_simulation.history.operations import Operation
from txnframework_simulation.history.replies import Reply


class EventKind(Enum):
    """Kind of an event: a call, or its reply: it succeeded, it failed and has no effect, or its outcome is unknown."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The start or the end of a client's call.

    ``number`` is that of the call, unique within the client: an ``invoke`` and at most one event after it bear it.
    ``operation`` comes with the ``invoke``, ``reply`` with ``ok`` (and with ``fail``, where the refusal told an
    outcome), ``error`` with the other two.
    """

    at_ns: int
    client: str
    number: int
    kind: EventKind
    operation: Operation | None = None
    reply: Reply | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """
    What one client asked for and what became of it.

    ``began`` and ``ended`` count events: of two calls the one that ended before the other began came before it. A call
    that was never answered ends with the history, and ``kind`` is UNKNOWN.
    """

    client: str
    operation: Operation
    began: int
    ended: int
    kind: EventKind
    reply: Reply | None = None
    error: str = ""
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether it happened."""
        return self.kind is EventKind.OK

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self.kind is not EventKind.FAIL


@dataclass(slots=True)
class History:
    """
    Events in the order in which they happened; ``about`` says of which run (its seed, for instance).

    What clients of several processes recorded is merged by their clocks, which have to be one.
    """

    events: list[Event] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    @classmethod
    def merged(cls, histories: Iterable[History], about: dict[str, str] | None = None) -> History:
        """Return one history of what several processes recorded."""
        events = [event for one in histories for event in one.events]
        events.sort(key=lambda event: event.at_ns)
        return cls(events, dict(about or {}))

    def calls(self) -> list[Call]:
        """
        Return all calls, in the order in which they began.

        :raises Corrupt: an answer has no question, or a call has two of either.
        """
        asked: dict[tuple[str, int], int] = {}
        told: dict[int, int] = {}
        for index, event in enumerate(self.events):
            name = (event.client, event.number)
            if event.kind is EventKind.INVOKE:
                if name in asked or event.operation is None:
                    raise Corrupt(f"call {event.number} of {event.client} begins twice, or asks for nothing")
                asked[name] = index
            else:
                began = asked.get(name)
                if began is None or began in told:
                    raise Corrupt(f"call {event.number} of {event.client} ends without having begun, or twice")
                told[began] = index
        return [self._call(began, told.get(began)) for began in asked.values()]

    def _call(self, began: int, ended: int | None) -> Call:
        invoke = self.events[began]
        assert invoke.operation is not None
        if ended is None:
            never = len(self.events)
            return Call(invoke.client, invoke.operation, began, never, EventKind.UNKNOWN, events=(invoke,))
        end = self.events[ended]
        events = (invoke, end)
        return Call(invoke.client, invoke.operation, began, ended, end.kind, end.reply, end.error, events)
