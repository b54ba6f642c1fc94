"""The command ``txnframework compare``, and its progress on standard error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from txnframework.cli import terminal
from txnframework.cli.output import output_option, print_json
from txnframework.plugin import load_plugins
from txnframework.testing.servers.embedded import started
from txnframework_compare.backends import backend as opened_stores
from txnframework_compare.comparison import Comparison, MeasureResults
from txnframework_compare.document import document_of
from txnframework_compare.errors import UnusableOption
from txnframework_compare.families import FAMILIES, Family
from txnframework_compare.measures import MEASURES, Measure
from txnframework_compare.plots import require_matplotlib, write_plot
from txnframework_compare.system import FULL, QUICK, Workload
from txnframework_compare.tables import print_measured


class ProgressDisplay:
    """Shows progress while a measure is taken; between measures, tables can be written to standard output."""

    def __init__(self, console: Console, measures: int) -> None:
        self._console = console
        self._measures = measures
        self._number = 0
        self._began_s = 0.0
        self._measure: Measure | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, measure: Measure, steps: int) -> None:
        """Start the next measure."""
        self._number += 1
        self._began_s = time.monotonic()
        self._measure = measure
        if self._console.is_terminal:
            columns = (BarColumn(10), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(measure.name, total=steps)
            self._progress.start()

    def step(self, doing: str) -> None:
        """Start the next step of the measure."""
        if self._progress is not None and self._measure is not None and self._task is not None:
            self._progress.update(self._task, description=f"{self._measure.name}: {doing}", advance=1)

    def end(self) -> None:
        """Report that the measure is finished."""
        self.stop()
        if self._measure is not None and not self._console.is_terminal:
            seconds = time.monotonic() - self._began_s
            title = f"[{self._number}/{self._measures}] {self._measure.title}: done ({seconds:.1f} s)"
            self._console.print(Text(title), soft_wrap=True)

    def stop(self) -> None:
        """Remove the live line, whatever the state of the measure. Idempotent."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


T = TypeVar("T")

EPILOG = """\
Exit status: 0 if all measures were taken (the tables show what a family cannot do); 2 for invalid usage.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--backend",
    "backend_url",
    metavar="URL",
    help="Store for metadata and messages: memory:, sqlite:///..., postgresql://..., zookeeper://...; or"
    " embedded-postgresql, embedded-zookeeper, which start a server for the run. Each family gets stores of its own,"
    " which are removed at the end. Existing data is neither read nor written."
    "  [default: SQLite in a temporary directory]",
)
@click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    help="Store for messages.  [default: the same as --backend, if it stores messages, otherwise SQLite]",
)
@click.option("--families", metavar="NAME,...", help=f"Families to compare.  [default: {','.join(FAMILIES)}]")
@click.option("--measures", metavar="NAME,...", help=f"Measures to take.  [default: {','.join(MEASURES)}]")
@click.option(
    "--participants",
    metavar="COUNT,...",
    help=f"Numbers of topics that take part in a transaction.  [default: {','.join(map(str, FULL.participants))}]",
)
@click.option(
    "--finished",
    metavar="COUNT,...",
    help=f"Numbers of transactions finished before a recovery.  [default: {','.join(map(str, FULL.finished))}]",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help=f"Rounds; each family is measured once in each.  [default: {FULL.rounds}]",
)
@click.option("--quick", is_flag=True, help="Use small sizes and two rounds, to check that everything runs.")
@output_option
@click.option(
    "--plots", type=click.Path(path_type=Path), metavar="DIR", help="Write a plot of each measure to this directory."
)
@click.option(
    "--plot-format", type=click.Choice(["png", "svg"]), default="png", show_default=True, help="Format of the plots."
)
def compare(
    backend_url: str | None,
    ledger_url: str | None,
    families: str | None,
    measures: str | None,
    participants: str | None,
    finished: str | None,
    rounds: int | None,
    quick: bool,
    output: str,
    plots: Path | None,
    plot_format: str,
) -> None:
    """
    Measure every family of transactions side by side, on one backend.

    Runs the same workload through each family, in alternating rounds. Measures the duration of ending by the number of
    participants, the writes of a transaction, concurrent transactions, recovery by the number of finished transactions,
    the time from commit to visible, and ending on a sealed segment. Absolute times are specific to the machine; compare
    the ratios.

    Takes about two minutes on SQLite, and longer over a network. With --quick it takes seconds.
    """
    chosen = _named(FAMILIES, families, "--families", "family")
    taken = _named(MEASURES, measures, "--measures", "measure")
    workload = _workload(quick, rounds, participants, finished)
    if plots is not None:
        require_matplotlib()
        _made(plots)
    registry = load_plugins()
    with (
        started(registry, backend_url, ledger_url) as (metadata, ledger),
        opened_stores(metadata, ledger, registry) as backend,
    ):
        shown = ProgressDisplay(terminal.console(stderr=True), len(taken))
        run = Comparison(chosen, taken, workload, backend, registry, shown)
        try:
            found = asyncio.run(_measured(run, chosen, tables=output == "table"))
        finally:
            shown.stop()
    if output == "json":
        print_json(document_of(found, chosen, workload, {"backend": backend_url, "ledger": ledger_url}))
    if plots is not None:
        for one in found:
            click.echo(f"Plot: {write_plot(one, chosen, plots, plot_format)}", err=True)


async def _measured(run: Comparison, families: list[Family], *, tables: bool) -> list[MeasureResults]:
    """Take every measure, and print its tables as soon as it is finished."""
    found = []
    async for one in run.measured():
        found.append(one)
        if tables:
            print_measured(one, families)
    return found


def _named(known: Mapping[str, T], typed: str | None, option: str, what: str) -> list[T]:
    """Return the items named by an option's value, in the order of their names there."""
    if typed is None:
        return list(known.values())
    names = dict.fromkeys(part.strip() for part in typed.split(","))
    for name in names:
        if name not in known:
            raise UnusableOption(option, f"unknown {what} {name!r}; known: {', '.join(known)}")
    return [known[name] for name in names]


def _workload(quick: bool, rounds: int | None, participants: str | None, finished: str | None) -> Workload:
    workload = QUICK if quick else FULL
    return replace(
        workload,
        rounds=workload.rounds if rounds is None else rounds,
        participants=_sizes(participants, "--participants", workload.participants),
        finished=_sizes(finished, "--finished", workload.finished),
    )


def _sizes(typed: str | None, option: str, default: Iterable[int]) -> tuple[int, ...]:
    """Return an option's sizes, smallest first: each size reuses the data of the previous one."""
    if typed is None:
        return tuple(default)
    parts = [part.strip() for part in typed.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise UnusableOption(option, f"{part!r} is not a count; write numbers such as 1,10,100")
    return tuple(sorted({int(part) for part in parts}))


def _made(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableOption("--plots", f"{directory}: {(error.strerror or str(error)).lower()}") from error
