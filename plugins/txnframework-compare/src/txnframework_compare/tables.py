"""Tables for people: they fit into 80 columns, and a sentence below each explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from txnframework.cli import terminal
from txnframework_compare.comparison import FigureResult, MeasureResults
from txnframework_compare.families import Family
from txnframework_compare.measures import TableView

PLAIN_WIDTH: Final = 80
"""The width for files and pipes."""
INLINE_COLUMNS: Final = 3
"""A table with more columns has no room for reasons in its cells; they are printed below it."""


def print_measured(measured: MeasureResults, families: Sequence[Family]) -> None:
    """Print every table of a measure."""
    console = terminal.console(plain_width=PLAIN_WIDTH)
    for view in measured.measure.views:
        for part in parts_of(measured, view, families):
            console.print(part)


def parts_of(measured: MeasureResults, view: TableView, families: Sequence[Family]) -> Iterator[RenderableType]:
    """Yield one view: its title, a row for each family with a column for each size or figure, and its explanation."""
    columns = list(_columns(measured, view))
    reasons = _Reasons(inline=len(columns) <= INLINE_COLUMNS)
    yield Text(f"{measured.measure.title}: {view.title}", style="bold")
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(_corner(measured), no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", overflow="fold")
    for family in families:
        cells = []
        for column in columns:
            taken = measured.of(family)[column.size].figure(column.figure)
            first = measured.of(families[0])[column.size].figure(column.figure)
            cells.append(reasons.of(taken.unable) if taken.unable else _cell(taken, first, compared=view.compared))
        table.add_row(family.name, *cells)
    yield table
    yield from map(Text, [*reasons.lines(), _explanation(view, families), ""])


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    size: int
    figure: str


@dataclass(slots=True)
class _Reasons:
    """
    The reasons why families cannot be measured: in the cells if there is room, otherwise numbered below the table.
    """

    inline: bool
    _found: list[str] = field(default_factory=list)

    def of(self, why: str) -> str:
        if self.inline:
            return f"cannot: {why}"
        if why not in self._found:
            self._found.append(why)
        return f"cannot ({self._found.index(why) + 1})"

    def lines(self) -> list[str]:
        return [f"({number}) cannot: {why}" for number, why in enumerate(self._found, 1)]


def _columns(measured: MeasureResults, view: TableView) -> Iterator[_Column]:
    for figure, title in view.figures.items():
        for size in measured.sizes:
            yield _Column(title if measured.measure.axis is None else f"{size:,}", size, figure)


def _corner(measured: MeasureResults) -> str:
    axis = measured.measure.axis
    return "family" if axis is None else f"{axis}:"


def _cell(taken: FigureResult, first: FigureResult, *, compared: bool) -> str:
    number = shown(taken.median)
    if not compared or taken is first or not first.rounds or not first.median:
        return number
    return f"{number} ({times(taken.median / first.median)})"


def _explanation(view: TableView, families: Sequence[Family]) -> str:
    ratios = f" In parentheses: as a multiple of {families[0].name}." if view.compared and len(families) > 1 else ""
    return view.explanation + ratios


def shown(number: float) -> str:
    """Return a number rounded to about three significant digits, without an exponent."""
    if number == int(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.1f}"
    return f"{number:.2f}" if abs(number) >= 1 else f"{number:.3f}"


def times(ratio: float) -> str:
    """Return a readable ratio: ``12x``, ``1.2x``, ``0.25x``, ``1/40``."""
    if ratio >= 10:
        return f"{ratio:,.0f}x"
    if ratio >= 1:
        return f"{ratio:.1f}x"
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"1/{1 / ratio:.0f}"
