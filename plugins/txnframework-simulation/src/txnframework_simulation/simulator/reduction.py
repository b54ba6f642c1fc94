"""Reduction of a failed run: fewer operations and fewer faults, as long as the same rule is violated."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txnframework_simulation.simulator.results import Limits, RunResult

ATTEMPTS_MAX = 60
"""The maximum number of runs of a search."""


def reduce_run(failed: RunResult, again: Callable[[Limits], RunResult], attempts_max: int = ATTEMPTS_MAX) -> RunResult:
    """
    Return the smallest run found that violates the same rule as the first violation of ``failed``.

    ``again`` repeats the run with other limits. Leaving something out changes the rest of a run, so the search finds a
    small run, not necessarily the smallest.
    """
    search = _Search(failed, again, attempts_max)
    search.fewer_operations()
    search.fewer_faults()
    search.fewer_operations()
    return search.smallest


class _Search:
    def __init__(self, failed: RunResult, again: Callable[[Limits], RunResult], attempts_max: int) -> None:
        self.smallest = failed
        self._invariant = failed.violations[0].invariant
        self._again = again
        self._left = attempts_max

    def fewer_operations(self) -> None:
        """Halve the number of operations, then reduce it in smaller steps."""
        most = self.smallest.limits.operations or self.smallest.operations
        step = most // 2
        while step and self._left:
            if most > step and self._fails(Limits(most - step, self.smallest.limits.only)):
                most -= step
            else:
                step //= 2

    def fewer_faults(self) -> None:
        """Leave out halves of the faults, then smaller parts, then single faults."""
        kept = [one.number for one in self.smallest.faults]
        part = len(kept)
        while part and self._left:
            for first in range(0, len(kept), part):
                if self._fails(Limits(self.smallest.limits.operations, _without(kept, first, part))):
                    kept = [one.number for one in self.smallest.faults]
                    break
            else:
                part //= 2
            part = min(part, len(kept))

    def _fails(self, limits: Limits) -> bool:
        if not self._left:
            return False
        self._left -= 1
        result = self._again(limits)
        if all(one.invariant != self._invariant for one in result.violations):
            return False
        self.smallest = result
        return True


def _without(numbers: Iterable[int], first: int, part: int) -> frozenset[int]:
    listed = list(numbers)
    return frozenset(listed[:first] + listed[first + part :])
