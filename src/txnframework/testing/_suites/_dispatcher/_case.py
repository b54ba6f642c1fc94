"""Shared parts of the rules of dispatchers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Candidate, ConsumerInfo, Ordering, Position
from txnframework.testing._suites._base import Suite
from txnframework.testing.capabilities import OfKind
from txnframework.testing.harness import Harness

EXCLUSIVE = OfKind("subscription_type", "exclusive")
FAILOVER = OfKind("subscription_type", "failover")
SHARED = OfKind("subscription_type", "shared")
KEY_SHARED = OfKind("subscription_type", "key_shared")
ORDERED = OfKind("ordering", Ordering.SEGMENT)
ORDERED_BY_KEY = OfKind("ordering", Ordering.KEY)
STANDS_BY = OfKind("stands_by", True)


class DispatcherRules(Suite):
    """Base class of the rules of dispatchers."""

    capabilities: ClassVar[tuple[Any, ...]] = (
        *(EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED),
        *(ORDERED, ORDERED_BY_KEY, STANDS_BY),
    )
    data: Harness[IDispatcher]


def at(entry: int) -> Position:
    """Return the position of a message."""
    return Position(1, entry, 0)


def offered(*entries: int, key: bytes | None = None, count: int = 0) -> tuple[Candidate, ...]:
    """Return candidates for these entries."""
    return tuple(Candidate(at(entry), key, count) for entry in entries)


def keyed(**entries: str) -> tuple[Candidate, ...]:
    """Return candidates with keys, from arguments such as ``m0="a", m1="b"``."""
    return tuple(Candidate(at(int(name[1:])), key.encode(), 0) for name, key in entries.items())


def released(*entries: int) -> frozenset[Position]:
    """Return the positions of entries to release."""
    return frozenset(map(at, entries))


def attach(dispatcher: IDispatcher, consumer_id: int, permits: int = 0, priority: int = 0) -> None:
    """Attach a consumer whose name contains its number."""
    dispatcher.attach(ConsumerInfo(consumer_id, f"consumer-{consumer_id}", priority, permits))


def attach_any(dispatcher: IDispatcher, consumer_id: int, permits: int) -> bool:
    """Attach a consumer; return whether it was accepted."""
    try:
        attach(dispatcher, consumer_id, permits)
    except ConsumerBusy:
        return False
    return True


def assigned(dispatcher: IDispatcher, waiting: Iterable[Candidate]) -> list[tuple[int, int]]:
    """Return consumer and entry of each assignment."""
    return [(one.consumer_id, one.position.entry_id) for one in dispatcher.assign(tuple(waiting))]
