"""Numbers as people read them, and what stands where there is none."""

from __future__ import annotations

import pytest
from rich.console import Console

from txnframework_compare.comparison import FamilyResult, MeasureResults, result_of
from txnframework_compare.families import FAMILIES
from txnframework_compare.measures import MEASURES, Figure, NotMeasurable
from txnframework_compare.tables import parts_of, shown, times

LOG, METADATA = FAMILIES["log"], FAMILIES["metadata"]


def printed(measured: MeasureResults) -> list[str]:
    """Return the lines of a measure's first table."""
    console = Console(width=80)
    with console.capture() as capture:
        for part in parts_of(measured, measured.measure.views[0], [LOG, METADATA]):
            console.print(part)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(
    ("number", "said"),
    [(0.0, "0"), (0.0512, "0.051"), (0.9, "0.900"), (1.234, "1.23"), (12.34, "12.3"), (6.0, "6"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits_that_count(number: float, said: str) -> None:
    """And no exponent."""
    assert shown(number) == said


@pytest.mark.parametrize(("ratio", "said"), [(314.2, "314x"), (1.5, "1.5x"), (0.25, "0.25x"), (0.01, "1/100")])
def test_ratios_say_how_many_times(ratio: float, said: str) -> None:
    """Less than a tenth is a fraction, so that it can be read aloud."""
    assert times(ratio) == said


def test_why_a_family_cannot_stands_below_a_wide_table() -> None:
    """The cells have no room for reasons; each reason is printed once."""
    sizes = (1, 10, 100, 1_000)
    missing = [FamilyResult(LOG, size, {}, "it is not installed") for size in sizes]
    measured = [result_of(METADATA, size, [(Figure("commit", 2.0, "ms"),)]) for size in sizes]
    lines = printed(MeasureResults(MEASURES["ending"], sizes, (*missing, *measured)))
    assert lines[3].split() == ["log", *["cannot", "(1)"] * 4]
    assert lines[4].split() == ["metadata", *"2222"]
    assert lines[5] == "(1) cannot: it is not installed"


def test_why_a_family_cannot_stands_in_the_cell_of_a_narrow_one() -> None:
    """Beside what was measured of it all the same."""
    figures = (
        Figure("commit", NotMeasurable("it is sealed"), "ms"),
        Figure("took", 300.0, "ms"),
        Figure("readable", 1, ""),
    )
    results = (result_of(LOG, 1, [figures]), FamilyResult(METADATA, 1, {}, "it is not installed"))
    lines = printed(MeasureResults(MEASURES["sealed"], (1,), results))
    assert lines[3].split() == ["log", "cannot:", "it", "is", "sealed", "300", "1"]
    assert " ".join([*lines[4].split(), *lines[5].split()]).count("cannot: it is not") == 3
