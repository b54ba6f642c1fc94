"""Mutants: rules with the edits that break them, and the search for a seed that detects each one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from txnframework.errors import InvalidInput
from txnframework_simulation.mutants.runner import TABLE, read_table


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a module's source, which occurs exactly once, and its replacement."""

    module: str
    find: str
    replace: str


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    An edit of the code that breaks one rule.

    ``scenarios``: the simulation's scenarios that use the edited code. ``table``: the file that defines the mutant.
    """

    name: str
    rule: str
    scenarios: tuple[str, ...]
    edits: tuple[Edit, ...]
    table: Path = TABLE


def mutants(table: Path = TABLE) -> tuple[Mutant, ...]:
    """
    Return all mutants of a table, in the order of the file.

    :raises InvalidInput: the file is not a table of mutants.
    """
    try:
        return tuple(msgspec.convert({**one, "table": table}, Mutant) for one in read_table(table).values())
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{table} is not a table of mutants: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        expected = "expected tables [[mutant]] with name, rule, scenarios and edits"
        raise InvalidInput(f"{table} is not a table of mutants: {expected}") from error


def select_mutants(names: Sequence[str], table: Path = TABLE) -> tuple[Mutant, ...]:
    """
    Return the mutants with these names, or all mutants of the table if there are no names.

    :raises InvalidInput: a name is unknown.
    """
    known = {one.name: one for one in mutants(table)}
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no mutant {name!r}; there are {', '.join(sorted(known))}")
    return tuple(known[name] for name in names) if names else tuple(known.values())


_BROKEN_EDIT = ("NameError", "UnboundLocalError", "ImportError")
"""Errors of an edit that no longer fits the code around it: such a mutant breaks the program and not its rule."""

SCRIPT = Path(__file__).with_name("runner.py")


@dataclass(frozen=True, slots=True)
class Detected:
    """The simulation detected the mutant with ``seed``, after trying ``seeds`` seeds."""

    mutant: Mutant
    seed: int
    seeds: int
    invariant: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Undetected:
    """The simulation did not detect the mutant with any of ``seeds`` seeds."""

    mutant: Mutant
    seeds: int


@dataclass(frozen=True, slots=True)
class Unusable:
    """The mutant could not be tested: its edits do not match the code, or the edited code does not run."""

    mutant: Mutant
    reason: str


MutantResult = Detected | Undetected | Unusable


class _RunnerOutput(msgspec.Struct):
    seed: int | None = None
    seeds: int = 0
    invariant: str = ""
    sentence: str = ""


def try_mutant(mutant: Mutant, seeds: range) -> MutantResult:
    """Run seeds with the mutant until one detects it, then check that this seed passes without the mutant."""
    found = _run_seeds(mutant, mutant.name, seeds)
    if isinstance(found, str):
        return Unusable(mutant, found)
    if found.seed is None:
        return Undetected(mutant, found.seeds)
    if found.sentence.startswith(_BROKEN_EDIT):
        return Unusable(mutant, f"the edited code does not run: {found.sentence}")
    unbroken = _run_seeds(mutant, "", range(found.seed, found.seed + 1))
    if isinstance(unbroken, str) or unbroken.seed is not None:
        return Unusable(mutant, f"seed {found.seed} does not pass with the rule kept: {found.invariant}")
    return Detected(mutant, found.seed, seeds.index(found.seed) + 1, found.invariant, found.sentence)


def _run_seeds(mutant: Mutant, name: str, seeds: range) -> _RunnerOutput | str:
    """
    Run seeds of a mutant's scenarios with the mutant ``name``, or without any; return the result, or the error as text.
    """
    command = [sys.executable, str(SCRIPT), str(mutant.table), name, str(seeds[0]), str(seeds[-1]), *mutant.scenarios]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1] if lines else f"it ended with status {ran.returncode}"
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=_RunnerOutput)


def try_mutants(wanted: Sequence[Mutant], seeds: range, workers: int) -> Iterator[MutantResult]:
    """Yield the result of each mutant as soon as it is known."""
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(try_mutant, mutant, seeds) for mutant in wanted]):
            yield done.result()
