"""``txnframework simulate``: the real code under seeds, faults and virtual time."""

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

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput

if TYPE_CHECKING:
    from txnframework_simulation.simulator.campaign import RunSummary
    from txnframework_simulation.simulator.results import RunResult

PROGRESS_EVERY_MS = 5_000
STATUS_FAILED = 1


class Seeds(click.ParamType[range]):
    """One seed, or the first and last of a range."""

    name = "FIRST-LAST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Return the range that was typed."""
        if isinstance(value, range):
            return value
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", str(value))
        if found is None:
            self.fail(f"{value!r} is not a range of seeds: write one such as 1-1000", param, ctx)
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return range(first, last + 1)


class Numbers(click.ParamType[frozenset[int]]):
    """Numbers with commas between, or ``none``."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        """Return the numbers that were typed."""
        if isinstance(value, frozenset):
            return value
        if value == "none":
            return frozenset()
        if not re.fullmatch(r"\d+(,\d+)*", str(value)):
            self.fail(f"{value!r} is not a list of numbers: write one such as 3,17, or none", param, ctx)
        return frozenset(map(int, str(value).split(",")))


@click.command()
@click.option("--seeds", type=Seeds(), default="1-1000", show_default=True, help="Which seeds to run.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="In how many processes.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME|FILE.toml",
    help="What to run; may be repeated. Default: each seed runs one of those that come with the framework.",
)
@click.option("--replay", type=int, metavar="SEED", help="Run this seed once more, and tell everything of it.")
@click.option("--operations", type=click.IntRange(1), help="With --replay: stop after so many client operations.")
@click.option("--only", type=Numbers(), help="With --replay: let only these faults happen.")
@click.option(
    "--history",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the history of the run that failed, or was replayed, to this file.",
)
@click.option(
    "--mutants", is_flag=True, help="Break each rule of the protocol in the code in turn, and see that it is noticed."
)
@click.option("--mutant", "only_mutants", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option(
    "--table",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.toml",
    help="With --mutants or --mutant: the rules in this file, which comes with a plugin.",
)
@click.option("--twice", is_flag=True, help="Run each seed twice, and stop where the second run is not the first.")
@click.option("--list", "listing", is_flag=True, help="Show the scenarios that come with the framework, and stop.")
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

    Several hosts share one memory, in virtual time.
    One seed is one run, the same in every step whenever it is repeated. What clients saw is checked afterwards. Stops
    at the first violation, makes the run smaller that shows it, and tells how to repeat it. Exit status 1 if there
    was one.

    With --mutants the rules of the protocol are broken in the code, one after the other, each in a process of its own,
    and the scenarios that come near it run until one seed notices. Exit status 1 if a rule can be broken unnoticed.
    """
    from txnframework_simulation.simulator import campaign, scenario

    if listing:
        for name in scenario.scenario_names():
            click.echo(f"{name:<18}{scenario.load_scenario(name).about}")
        return
    if replay is not None:
        one_run = "--replay tells of one run, of the code as it is"
        _refuse(ctx, one_run, "seeds", "workers", "twice", "mutants", "only_mutants")
    if mutants or only_mutants:
        _refuse(ctx, "a mutant is results in the scenarios that come near it", "scenarios", "history", "twice")
        _try_mutants(ctx, only_mutants, table, seeds, workers)
        return
    if table is not None:
        raise InvalidInput("--table says which rules are broken: add --mutants, or --mutant NAME")
    names = scenarios or scenario.scenario_names()
    for name in names:
        scenario.load_scenario(name)
    if replay is not None:
        _replay(ctx, campaign.scenario_of(replay, names), replay, operations, only, history)
        return
    if operations is not None or only is not None:
        raise InvalidInput("--operations and --only make one run smaller: name its seed with --replay")
    with closing(campaign.runs(seeds, names, workers, twice)) as running:
        failed = _first_failure(running, len(seeds))
    if failed is not None and not failed.repeatable:
        click.echo(
            f"Seed {failed.seed} of scenario {failed.scenario} was two different runs: something in it depends on the"
            " order of a set, or on the world outside."
        )
        ctx.exit(STATUS_FAILED)
    if failed is not None:
        click.echo(f"Seed {failed.seed} of scenario {failed.scenario} failed; looking for a smaller run.", err=True)
        _tell(_shrunk(failed), failed.scenario, history)
        ctx.exit(STATUS_FAILED)


def _refuse(ctx: click.Context, because: str, *names: str) -> None:
    """Refuse options that were typed and would do nothing."""
    for parameter in ctx.command.params:
        if parameter.name in names and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise InvalidInput(f"{parameter.opts[0]} does nothing here: {because}")


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
    began_ms = told_ms = now_ms()
    counts: Counter[str] = Counter()
    for ran in running:
        counts.update(runs=1, operations=ran.operations, faults=ran.faults)
        if ran.failed or not ran.repeatable:
            return ran
        if now_ms() - told_ms >= PROGRESS_EVERY_MS:
            told_ms = now_ms()
            click.echo(_progress(counts, seeds, told_ms - began_ms), err=True)
    click.echo(f"{_progress(counts, seeds, max(1, now_ms() - began_ms))}; nothing was violated.")
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
            f"--only names fault {missing[0]}, which this run does not have; without --only it tells the numbers"
            " of those that it has"
        )
    _tell(result, name, history)
    if result.violations:
        ctx.exit(STATUS_FAILED)
    click.echo("Nothing was violated.")


def _shrunk(failed: RunSummary) -> RunResult:
    from txnframework_simulation.simulator.reduction import shrink
    from txnframework_simulation.simulator.run import run
    from txnframework_simulation.simulator.scenario import load_scenario

    logging.disable(logging.CRITICAL)
    loaded = load_scenario(failed.scenario)
    result = run(loaded, failed.seed)
    return shrink(result, lambda limits: run(loaded, failed.seed, limits)) if result.violations else result


def _tell(result: RunResult, scenario: str, history: Path | None) -> None:
    from txnframework_simulation.history import write
    from txnframework_simulation.simulator.results import tell

    for line in tell(result, scenario):
        click.echo(line)
    if history is not None:
        write(result.history, history)
        click.echo(f"Its history stands in {history}.")
