"""How much is done: the same for every family of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Workload:
    """
    What transactions of a run do, and how often each thing is measured.

    A transaction that is counted reads and writes ``topics`` topics, ``messages`` of each. ``participants`` and
    ``finished`` are the sizes to measure ending and recovery at, ``together`` how many transactions run at a time.
    Of the finished ones every ``abort_every``-th was aborted. ``samples``: how often what is quick is done in a round.
    """

    topics: int = 3
    messages: int = 10
    message_bytes: int = 100
    participants: tuple[int, ...] = (1, 10, 100, 1_000)
    finished: tuple[int, ...] = (10, 100, 1_000)
    together: tuple[int, ...] = (1, 8, 64)
    abort_every: int = 10
    samples: int = 20
    rounds: int = 3

    def message(self) -> bytes:
        """Return one message."""
        return b"x" * self.message_bytes

    def samples_of(self, size: int) -> int:
        """Return how often something of this size is repeated in a round: less often what is large."""
        return max(1, min(self.samples, 2 * self.samples // size))


WHOLE: Final = Workload()
QUICK: Final = replace(WHOLE, messages=3, participants=(1, 10), finished=(10, 50), together=(1, 8), samples=2, rounds=2)
"""Whether it runs, not how fast."""
