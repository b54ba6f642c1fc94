"""Output of ``txnframework simulate --mutants``: which broken rules the simulation detects, and by which seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.cli.output import print_table

if TYPE_CHECKING:
    from txnframework_simulation.mutants import MutantResult

_SHOWN_MAX = 110


def show(results: Iterable[MutantResult]) -> None:
    """Print one row for each mutant, sorted by name."""
    rows = [
        (one.mutant.name, one.mutant.rule, *_cells(one)) for one in sorted(results, key=lambda one: one.mutant.name)
    ]
    print_table(("mutant", "broken rule", "detected", "violation"), rows)


def _cells(one: MutantResult) -> tuple[str, str]:
    from txnframework_simulation.mutants import Detected, Undetected

    if isinstance(one, Detected):
        return f"by seed {one.seeds}", one.invariant
    if isinstance(one, Undetected):
        return "no", f"not in {one.seeds} seeds"
    return "no", one.reason


def line(one: MutantResult) -> str:
    """Return one line of progress."""
    from txnframework_simulation.mutants import Detected, Undetected

    if isinstance(one, Detected):
        sentence = one.sentence if len(one.sentence) <= _SHOWN_MAX else f"{one.sentence[:_SHOWN_MAX]}..."
        return f"{one.mutant.name}: seed {one.seed}, {one.invariant}: {sentence}"
    if isinstance(one, Undetected):
        return f"{one.mutant.name}: not detected in {one.seeds} seeds"
    return f"{one.mutant.name}: cannot be tested: {one.reason}"
