"""The amount of work, equal for all families of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Workload:
    """
    The transactions of a run, and how often each measure repeats them.

    * A counted transaction reads and writes ``topics`` topics, ``messages`` of each.
    * ``participants`` and ``finished`` are the sizes for the measures of ending and recovery.
    * ``together`` is the number of concurrent transactions.
    * Every ``abort_every``-th finished transaction was aborted.
    * ``samples`` is how often a round repeats what is fast.
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
        """Return the value of one message."""
        return b"x" * self.message_bytes

    def samples_of(self, size: int) -> int:
        """Return how often a round repeats work of this size; larger work is repeated less."""
        return max(1, min(self.samples, 2 * self.samples // size))


WHOLE: Final = Workload()
QUICK: Final = replace(WHOLE, messages=3, participants=(1, 10), finished=(10, 50), together=(1, 8), samples=2, rounds=2)
"""A workload that shows whether the measures run, not how fast."""
