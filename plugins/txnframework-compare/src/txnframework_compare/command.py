"""The command ``txnframework compare``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from txnframework.cli import terminal
from txnframework.cli.output import output_option, print_json
from txnframework.plugin import load_plugins
from txnframework.testing.servers.embedded import started
from txnframework_compare.backends import backend as opened_backend
from txnframework_compare.document import document_of
from txnframework_compare.errors import UnusableOption
from txnframework_compare.families import FAMILIES, Family
from txnframework_compare.measures import MEASURES
from txnframework_compare.plots import require_matplotlib, write_plot
from txnframework_compare.progress import Shown
from txnframework_compare.results import Measured
from txnframework_compare.running import Run
from txnframework_compare.tables import print_measured
from txnframework_compare.workload import QUICK, WHOLE, Workload

T = TypeVar("T")

EPILOG = """\
Exit status: 0 done, also where a family cannot do something, which the tables say; 2 if something that was typed is
wrong.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--backend",
    "backend_url",
    metavar="URL",
    help="Store for metadata and messages: memory:, sqlite:///..., postgresql://..., zookeeper://...; or"
    " embedded-postgresql, embedded-zookeeper, which start a server for the time of the run. Each family gets places of"
    " its own there, which go at the end: what is there already is neither read nor written."
    "  [default: SQLite in a temporary directory]",
)
@click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    help="Store for messages.  [default: the same as --backend, if it keeps messages, otherwise SQLite]",
)
@click.option("--families", metavar="NAME,...", help=f"What to compare.  [default: {','.join(FAMILIES)}]")
@click.option("--measures", metavar="NAME,...", help=f"What to measure.  [default: {','.join(MEASURES)}]")
@click.option(
    "--participants",
    metavar="COUNT,...",
    help=f"Topics that take part in a transaction.  [default: {','.join(map(str, WHOLE.participants))}]",
)
@click.option(
    "--finished",
    metavar="COUNT,...",
    help=f"Transactions that have finished before a recovery.  [default: {','.join(map(str, WHOLE.finished))}]",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help=f"How often each family has its turn.  [default: {WHOLE.rounds}]",
)
@click.option("--quick", is_flag=True, help="Small sizes, two rounds: whether it runs, not how fast.")
@output_option
@click.option("--plots", type=click.Path(path_type=Path), metavar="DIR", help="Draw a picture of each measure there.")
@click.option(
    "--plot-format", type=click.Choice(["png", "svg"]), default="png", show_default=True, help="Of these pictures."
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

    The same workload through each family, in rounds that take them in turn: how long ending takes by the number of
    participants, what a transaction writes, transactions at the same time, recovery by the number of finished
    transactions, commit to visible, and ending on a sealed segment. Absolute times belong to one machine; the ratios
    are what can be compared.

    Takes some two minutes on SQLite, and longer over a network; --quick takes seconds.
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
        opened_backend(metadata, ledger, registry) as backend,
    ):
        shown = Shown(terminal.console(stderr=True), len(taken))
        run = Run(chosen, taken, workload, backend, registry, shown)
        try:
            found = asyncio.run(_measured(run, chosen, tables=output == "table"))
        finally:
            shown.stop()
    if output == "json":
        print_json(document_of(found, chosen, workload, {"backend": backend_url, "ledger": ledger_url}))
    if plots is not None:
        for one in found:
            click.echo(f"Drawn: {write_plot(one, chosen, plots, plot_format)}", err=True)


async def _measured(run: Run, families: list[Family], *, tables: bool) -> list[Measured]:
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
            raise UnusableOption(option, f"there is no {what} {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _workload(quick: bool, rounds: int | None, participants: str | None, finished: str | None) -> Workload:
    workload = QUICK if quick else WHOLE
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
