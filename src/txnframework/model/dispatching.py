"""Values that cross the dispatcher role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from txnframework.model.positions import Position

DEFAULT_TYPE = "exclusive"
"""The subscription type of consumers that name none."""


class Ordering(StrEnum):
    """Which of a segment's messages a subscription type keeps in order."""

    NONE = "none"
    KEY = "key"
    """Those of one key; a message without a key is in no order."""
    SEGMENT = "segment"
    """All of them."""


@dataclass(frozen=True, slots=True)
class SubscriptionType:
    """A subscription type by the name that clients ask for, and what its dispatcher declares; see ``IDispatcher``."""

    name: str
    ordering: Ordering
    stands_by: bool


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as a dispatcher sees it; ``permits``: messages it can take now."""

    consumer_id: int
    name: str
    priority: int = 0
    permits: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message waiting for a consumer; ``key`` None: no ordering asked for."""

    position: Position
    key: bytes | None
    redelivery_count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Give ``position`` to ``consumer_id``."""

    consumer_id: int
    position: Position
