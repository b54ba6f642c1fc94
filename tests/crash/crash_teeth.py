"""What fails at the crash points of a scenario while a rule is broken in the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crash_scenario import Scenario
from crash_walk import CrashPointFailed, Point, Walked, kills, run


def changing(walked: Walked) -> Iterable[Point]:
    """Yield a kill after each step that changed something: what the tests find by, and so what has to find it here."""
    return kills(walked, changes_only=True)


def failures(
    scenario: type[Scenario],
    points: Callable[[Walked], Iterable[Point]] = changing,
    family: str = "metadata",
) -> Iterator[str]:
    """Yield what fails at the points of a scenario, beginning with the run in which nothing goes wrong."""
    walked = Walked()
    try:
        walked = run(scenario, Point(), family)
    except CrashPointFailed as failed:
        yield _broken(failed)
    for point in points(walked):
        try:
            run(scenario, point, family)
        except CrashPointFailed as failed:
            yield _broken(failed)


def _broken(failed: CrashPointFailed) -> str:
    if not isinstance(failed.__cause__, AssertionError):
        raise failed  # what was swapped does not fit the code any more
    return str(failed)


class AppliedLast:
    """The way to a cursor to which acknowledgments come after everything else."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._acks: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    async def apply(self, *acks: Any) -> bool:
        self._acks.append(acks)
        return True

    async def flush(self) -> None:
        for acks in self._acks:
            await self._cursor.apply(*acks)
