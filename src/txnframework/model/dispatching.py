"""Values that cross the dispatcher role."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model.positions import Position


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
