"""Pictures: one for each measure, readable without colours too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txnframework_compare.comparison import FigureResult, MeasureResults
from txnframework_compare.errors import UnusableOption
from txnframework_compare.families import Family
from txnframework_compare.tables import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, distinguishable with any kind of colour vision."""
MARKERS: Final = "osD^vPX"
DASHES: Final = ("-", "--", "-.", ":")
HATCHES: Final = ("", "///", "...", "xx")
DOTS_PER_INCH: Final = 150
ROW_HEIGHT: Final = 0.8
WIDE_DECADES: Final = 2


def require_matplotlib() -> None:
    """Raise ``UnusableOption`` if matplotlib is not installed; called before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnusableOption(
            "--plots", "matplotlib is not installed: pip install 'txnframework-compare[plots]'"
        ) from error


def write_plot(measured: MeasureResults, families: Sequence[Family], directory: Path, kind: str) -> Path:
    """Draw a measure into a file with its name; return the file's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    draw = {"lines": _lines, "dots": _dots, "stacks": _stacks}[measured.measure.plot.kind]
    draw(axes, measured, families)
    axes.set_title(measured.measure.title, loc="left", fontweight="bold")
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    _note(axes, measured, families)
    path = directory / f"{measured.measure.name}.{kind}"
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def _lines(axes: Axes, measured: MeasureResults, families: Sequence[Family]) -> None:
    """Draw one line for each family over the sizes, with bars from the lowest to the highest round."""
    plot = measured.measure.plot
    (name,) = plot.figures
    for number, family in enumerate(families):
        every = {size: result.figure(name) for size, result in measured.of(family).items()}
        found = {size: one for size, one in every.items() if one.rounds}
        middle = [one.median for one in found.values()]
        line = {"linestyle": DASHES[number % len(DASHES)], **_style(number)}
        axes.errorbar(list(found), middle, yerr=_reach(found.values()), label=family.name, **line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(measured.sizes, [f"{size:,}" for size in measured.sizes])
    axes.xaxis.set_tick_params(which="minor", bottom=False, labelbottom=False)
    _log_ticks(axes.yaxis, axes.get_ylim())
    axes.set_xlabel(measured.measure.axis or "")
    axes.set_ylabel(plot.label)
    axes.grid(visible=True, which="major", alpha=0.3)


def _dots(axes: Axes, measured: MeasureResults, families: Sequence[Family]) -> None:
    """
    Draw a row for each family and a dot for each figure.

    Bars are not used, because a logarithmic axis has no zero.
    """
    plot = measured.measure.plot
    (size,) = measured.sizes
    step = ROW_HEIGHT / len(plot.figures)
    for number, (name, label) in enumerate(plot.figures.items()):
        shift = (number - (len(plot.figures) - 1) / 2) * step
        taken = {row: measured.of(family)[size].figure(name) for row, family in enumerate(families)}
        rows = {row + shift: one for row, one in taken.items() if one.rounds}
        middle = [one.median for one in rows.values()]
        axes.errorbar(middle, list(rows), xerr=_reach(rows.values()), label=label, linestyle="none", **_style(number))
        for row, one in rows.items():
            axes.annotate(shown(one.median), (max(one.rounds), row), (8, 0), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.2)
    _log_ticks(axes.xaxis, axes.get_xlim())
    _name_rows(axes, families, plot.label)


def _stacks(axes: Axes, measured: MeasureResults, families: Sequence[Family]) -> None:
    """Draw one bar for each family, stacked from all figures."""
    from matplotlib.ticker import MaxNLocator

    plot = measured.measure.plot
    (size,) = measured.sizes
    ends = [0.0] * len(families)
    for number, (name, label) in enumerate(plot.figures.items()):
        taken = [measured.of(family)[size].figure(name) for family in families]
        widths = [one.median if one.rounds else 0.0 for one in taken]
        bars = axes.barh(
            range(len(families)),
            widths,
            ROW_HEIGHT,
            left=ends,
            label=label,
            color=COLOURS[number],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
        )
        labels = [shown(width) if width else "" for width in widths]
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axes.bar_label(bars, labels, label_type="center", bbox=box)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.margins(x=0.05)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name_rows(axes, families, plot.label)


def _name_rows(axes: Axes, families: Sequence[Family], label: str) -> None:
    axes.set_yticks(range(len(families)), [family.name for family in families])
    axes.invert_yaxis()
    axes.set_ylabel("family")
    axes.set_xlabel(label)
    axes.grid(visible=True, axis="x", which="major", alpha=0.3)
    axes.set_axisbelow(True)


def _style(number: int) -> dict[str, Any]:
    """Return the colour and the marker of one line or row of dots."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "capsize": 3}


def _reach(several: Iterable[FigureResult]) -> tuple[list[float], list[float]]:
    """Return the distances of the lowest and the highest round from the median of each figure."""
    found = list(several)
    return [one.median - min(one.rounds) for one in found], [max(one.rounds) - one.median for one in found]


def _log_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Label the decades, and the steps 2 and 5 between them if there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    few = math.log10(limits[1] / limits[0]) <= WIDE_DECADES
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    axis.set_minor_formatter(NullFormatter())


def _note(axes: Axes, measured: MeasureResults, families: Sequence[Family]) -> None:
    """Write below the picture why a family has no figure, because a missing dot or point does not show the reason."""
    found: dict[str, str] = {}
    for family in families:
        for result in measured.of(family).values():
            taken = [result.figure(name) for view in measured.measure.views for name in view.figures]
            found.update((family.name, one.unable) for one in taken if one.unable)
    if found:
        notes = [f"{name} cannot: {why}" for name, why in found.items()]
        axes.set_xlabel("\n".join([axes.get_xlabel(), "", *notes]))
