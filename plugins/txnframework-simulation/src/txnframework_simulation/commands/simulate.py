"""``txnframework simulate``: runs the real code under seeds, faults and virtual time."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from txnframework.cli.output import print_table
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput

if TYPE_CHECKING:
    from txnframework_simulation.simulator.campaign import RunSummary
    from txnframework_simulation.simulator.results import RunResult

PROGRESS_EVERY_MS = 5_000
STATUS_FAILED = 1


class Seeds(click.ParamType[range]):
    """A seed, or a range of seeds."""

    name = "FIRST-LAST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Return the range."""
        if isinstance(value, range):
            return value
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", str(value))
        if found is None:
            self.fail(f"{value!r} is not a range of seeds such as 1-1000", param, ctx)
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return range(first, last + 1)


class Numbers(click.ParamType[frozenset[int]]):
    """Numbers separated by commas, or ``none``."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        """Return the numbers."""
        if isinstance(value, frozenset):
            return value
        if value == "none":
            return frozenset()
        if not re.fullmatch(r"\d+(,\d+)*", str(value)):
            self.fail(f"{value!r} is not a list of numbers such as 3,17, or none", param, ctx)
        return frozenset(map(int, str(value).split(",")))


@click.command()
@click.option("--seeds", type=Seeds(), default="1-1000", show_default=True, help="Seeds to run.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of processes.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME|FILE.toml",
    help="Scenario to run; may be repeated. Default: each seed runs one of the built-in scenarios.",
)
@click.option("--replay", type=int, metavar="SEED", help="Run this seed again, and print its details.")
@click.option("--operations", type=click.IntRange(1), help="With --replay: stop after so many client operations.")
@click.option("--only", type=Numbers(), help="With --replay: inject only the faults with these numbers.")
@click.option(
    "--history",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the history of the failed or replayed run to this file.",
)
@click.option(
    "--mutants", is_flag=True, help="Break each rule of the protocol in the code, and check that it is detected."
)
@click.option("--mutant", "only_mutants", multiple=True, metavar="NAME", help="Test only this mutant; may be repeated.")
@click.option(
    "--table",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.toml",
    help="With --mutants or --mutant: read the mutants from this file, such as a plugin's table.",
)
@click.option("--twice", is_flag=True, help="Run each seed twice, and stop if the two runs differ.")
@click.option("--list", "listing", is_flag=True, help="List the built-in scenarios and exit.")
@click.pass_context
def simulate(
    ctx: click.Context,
    seeds: range,
    workers: int,
    scenarios: tuple[str, ...],
    replay: int | None,
    operations: int | None,
    only: frozenset[int] | None,
    history: Path | None,
    mutants: bool,
    only_mutants: tuple[str, ...],
    table: Path | None,
    twice: bool,
    listing: bool,
) -> None:
    """
    Run the real code in a simulation with faults, and check what clients saw.

    Several hosts run in one process, in virtual time, over stores in memory. A seed determines every step of a run.
    After each run, the history of its clients is checked. The command stops at the first violation, reduces the run,
    and prints how to repeat it. Exit status 1 if a rule was violated.

    With --mutants, each rule of the protocol is broken in the code, in a process of its own. The scenarios of the
    mutant run until a seed detects it. Exit status 1 if a mutant is not detected.
    """
    from txnframework_simulation.simulator import campaign, scenario

    if listing:
        rows = [(name, scenario.load_scenario(name).about) for name in scenario.scenario_names()]
        print_table(("scenario", "description"), rows)
        return
    if replay is not None:
        one_run = "--replay runs one seed, without mutants"
        _refuse(ctx, one_run, "seeds", "workers", "twice", "mutants", "only_mutants")
    if mutants or only_mutants:
        _refuse(ctx, "each mutant names its scenarios", "scenarios", "history", "twice")
        _try_mutants(ctx, only_mutants, table, seeds, workers)
        return
    if table is not None:
        raise InvalidInput("--table needs --mutants or --mutant NAME")
    names = scenarios or scenario.scenario_names()
    for name in names:
        scenario.load_scenario(name)
    if replay is not None:
        _replay(ctx, campaign.scenario_of(replay, names), replay, operations, only, history)
        return
    if operations is not None or only is not None:
        raise InvalidInput("--operations and --only need --replay SEED")
    with closing(campaign.runs(seeds, names, workers, twice)) as running:
        failed = _first_failure(running, len(seeds))
    if failed is not None and not failed.repeatable:
        click.echo(
            f"Two runs of seed {failed.seed} of scenario {failed.scenario} differ: the code depends on the order of a"
            " set or on something outside the simulation."
        )
        ctx.exit(STATUS_FAILED)
    if failed is not None:
        click.echo(f"Seed {failed.seed} of scenario {failed.scenario} failed; reducing the run.", err=True)
        _print(_reduced(failed), failed.scenario, history)
        ctx.exit(STATUS_FAILED)


def _refuse(ctx: click.Context, because: str, *names: str) -> None:
    """Reject options that have no effect here."""
    for parameter in ctx.command.params:
        if parameter.name in names and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise InvalidInput(f"{parameter.opts[0]} has no effect here: {because}")


def _try_mutants(ctx: click.Context, names: tuple[str, ...], table: Path | None, seeds: range, workers: int) -> None:
    from txnframework_simulation.commands.mutants import line, show
    from txnframework_simulation.mutants import TABLE, Detected, select_mutants, try_mutants

    wanted = select_mutants(names, table or TABLE)
    done = []
    for one in try_mutants(wanted, seeds, workers):
        done.append(one)
        click.echo(f"{len(done)} of {len(wanted)}: {line(one)}", err=True)
    show(done)
    if not all(isinstance(one, Detected) for one in done):
        ctx.exit(STATUS_FAILED)


def _first_failure(running: Iterator[RunSummary], seeds: int) -> RunSummary | None:
    now_ms = SystemEnvironment().now_ms
    began_ms = printed_ms = now_ms()
    counts: Counter[str] = Counter()
    for ran in running:
        counts.update(runs=1, operations=ran.operations, faults=ran.faults)
        if ran.failed or not ran.repeatable:
            return ran
        if now_ms() - printed_ms >= PROGRESS_EVERY_MS:
            printed_ms = now_ms()
            click.echo(_progress(counts, seeds, printed_ms - began_ms), err=True)
    click.echo(f"{_progress(counts, seeds, max(1, now_ms() - began_ms))}; no rule was violated.")
    return None


def _progress(counts: Counter[str], seeds: int, took_ms: int) -> str:
    runs = counts["runs"]
    return (
        f"{runs} of {seeds} runs, {runs * 60_000 / took_ms:.0f} a minute, each with "
        f"{counts['operations'] / runs:.0f} client operations and {counts['faults'] / runs:.0f} faults"
    )


def _replay(
    ctx: click.Context,
    name: str,
    seed: int,
    operations: int | None,
    only: frozenset[int] | None,
    history: Path | None,
) -> None:
    from txnframework_simulation.simulator.results import Limits
    from txnframework_simulation.simulator.run import run
    from txnframework_simulation.simulator.scenario import load_scenario

    logging.disable(logging.CRITICAL)
    result = run(load_scenario(name), seed, Limits(operations, only))
    missing = sorted((only or frozenset()) - {one.number for one in result.faults})
    if missing:
        raise InvalidInput(
            f"--only: this run has no fault {missing[0]}; without --only, the numbers of its faults are printed"
        )
    _print(result, name, history)
    if result.violations:
        ctx.exit(STATUS_FAILED)
    click.echo("No rule was violated.")


def _reduced(failed: RunSummary) -> RunResult:
    from txnframework_simulation.simulator.reduction import reduce_run
    from txnframework_simulation.simulator.run import run
    from txnframework_simulation.simulator.scenario import load_scenario

    logging.disable(logging.CRITICAL)
    loaded = load_scenario(failed.scenario)
    result = run(loaded, failed.seed)
    return reduce_run(result, lambda limits: run(loaded, failed.seed, limits)) if result.violations else result


def _print(result: RunResult, scenario: str, history: Path | None) -> None:
    from txnframework_simulation.history import write
    from txnframework_simulation.simulator.results import describe

    for line in describe(result, scenario):
        click.echo(line)
    if history is not None:
        write(result.history, history)
        click.echo(f"Its history is in {history}.")
