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

    ``number`` is the number of the call, unique within the client. An ``invoke`` and at most one later event have it.
    An ``invoke`` has an ``operation``, and ``ok`` has a ``reply``. ``fail`` and ``unknown`` have an ``error``. A
    ``fail`` also has a ``reply`` if the refusal shows an outcome.
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
    One operation of a client, and its outcome.

    ``began`` and ``ended`` are indexes of events. A call precedes another if it ended before the other began. A call
    without a reply ends with the history, and its ``kind`` is UNKNOWN.
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
        """Whether the operation happened."""
        return self.kind is EventKind.OK

    @property
    def possible(self) -> bool:
        """Whether the operation may have happened."""
        return self.kind is not EventKind.FAIL


@dataclass(slots=True)
class History:
    """
    Events in the order in which they happened. ``about`` describes the run, for example by its seed.

    Events that several processes recorded are merged by their times, so the processes must share one clock.
    """

    events: list[Event] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    @classmethod
    def merged(cls, histories: Iterable[History], about: dict[str, str] | None = None) -> History:
        """Return one history with the events that several processes recorded."""
        events = [event for one in histories for event in one.events]
        events.sort(key=lambda event: event.at_ns)
        return cls(events, dict(about or {}))

    def calls(self) -> list[Call]:
        """
        Return all calls, in the order in which they began.

        :raises Corrupt: a reply has no call, or a call begins or ends twice.
        """
        asked: dict[tuple[str, int], int] = {}
        told: dict[int, int] = {}
        for index, event in enumerate(self.events):
            name = (event.client, event.number)
            if event.kind is EventKind.INVOKE:
                if name in asked or event.operation is None:
                    raise Corrupt(f"call {event.number} of {event.client} begins twice, or has no request")
                asked[name] = index
            else:
                began = asked.get(name)
                if began is None or began in told:
                    raise Corrupt(f"call {event.number} of {event.client} ends twice, or never began")
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
