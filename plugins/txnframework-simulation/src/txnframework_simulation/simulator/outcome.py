"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.simulator.misfortunes import Misfortune


@dataclass(frozen=True, slots=True)
class Limits:
    """What is left out of a run, to make it smaller: ``only`` are the misfortunes that happen, by their numbers."""

    operations: int | None = None
    only: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What one run came to; ``digest`` tells two runs apart that were not the same in every step.

    ``operations`` counts what clients asked for, ``misfortunes`` are those that happened.
    """

    scenario: str
    seed: int
    limits: Limits
    history: History
    violations: tuple[Violation, ...]
    misfortunes: tuple[Misfortune, ...]
    operations: int
    steps: int
    virtual_ms: int
    digest: str
