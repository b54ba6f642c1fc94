"""Mutants: rules with the edits that break them, and the search for a seed that detects each one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from txnframework.errors import InvalidInput
from txnframework_simulation.mutants.runner import TABLE, read_table


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a module's source, which stands there once, and what it is replaced by."""

    module: str
    find: str
    replace: str


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code with one rule broken; ``scenarios`` are those of the simulation that come near it, ``table`` says it."""

    name: str
    rule: str
    scenarios: tuple[str, ...]
    edits: tuple[Edit, ...]
    table: Path = TABLE


def mutants(table: Path = TABLE) -> tuple[Mutant, ...]:
    """Return all of them, in the order of their file."""
    return tuple(msgspec.convert({**one, "table": table}, Mutant) for one in read_table(table).values())


def select_mutants(names: Sequence[str], table: Path = TABLE) -> tuple[Mutant, ...]:
    """
    Return those of these names in a table; without names, all.

    :raises InvalidInput: there is no such mutant.
    """
    known = {one.name: one for one in mutants(table)}
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no mutant {name!r}; there are {', '.join(sorted(known))}")
    return tuple(known[name] for name in names) if names else tuple(known.values())


SCRIPT = Path(__file__).with_name("runner.py")


@dataclass(frozen=True, slots=True)
class Detected:
    """The simulation noticed, under ``seed``, having tried ``seeds``."""

    mutant: Mutant
    seed: int
    seeds: int
    invariant: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Undetected:
    """All ``seeds`` went by and nothing was noticed."""

    mutant: Mutant
    seeds: int


@dataclass(frozen=True, slots=True)
class Unusable:
    """It could not be tried: its edits do not fit the code any more, or break it altogether."""

    mutant: Mutant
    reason: str


MutantResult = Detected | Undetected | Unusable


class _RunnerOutput(msgspec.Struct):
    seed: int | None = None
    seeds: int = 0
    invariant: str = ""
    sentence: str = ""


def try_mutant(mutant: Mutant, seeds: range) -> MutantResult:
    """Run seeds, in a process in which the mutant lives, until one finds it; that has to pass without the mutant."""
    found = _run_seeds(mutant, mutant.name, seeds)
    if isinstance(found, str):
        return Unusable(mutant, found)
    if found.seed is None:
        return Undetected(mutant, found.seeds)
    unbroken = _run_seeds(mutant, "", range(found.seed, found.seed + 1))
    if isinstance(unbroken, str) or unbroken.seed is not None:
        return Unusable(mutant, f"seed {found.seed} does not pass with the rule kept: {found.invariant}")
    return Detected(mutant, found.seed, seeds.index(found.seed) + 1, found.invariant, found.sentence)


def _run_seeds(mutant: Mutant, name: str, seeds: range) -> _RunnerOutput | str:
    """Run seeds of a mutant's scenarios with the mutant of this name, or with none; why not, if that broke."""
    command = [sys.executable, str(SCRIPT), str(mutant.table), name, str(seeds[0]), str(seeds[-1]), *mutant.scenarios]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1] if lines else f"it ended with status {ran.returncode}"
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=_RunnerOutput)


def try_mutants(wanted: Sequence[Mutant], seeds: range, workers: int) -> Iterator[MutantResult]:
    """Yield what became of each mutant, as it becomes known."""
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(try_mutant, mutant, seeds) for mutant in wanted]):
            yield done.result()
