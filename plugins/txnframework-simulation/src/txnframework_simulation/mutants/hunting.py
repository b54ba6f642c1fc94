"""Looking for the seed that finds a mutant: each in a process of its own, several beside each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from txnframework_simulation.mutants.mutant import Mutant

SCRIPT = Path(__file__).with_name("mutated.py")


@dataclass(frozen=True, slots=True)
class Caught:
    """The simulation noticed, under ``seed``, having tried ``seeds``."""

    mutant: Mutant
    seed: int
    seeds: int
    invariant: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Escaped:
    """All ``seeds`` went by and nothing was noticed."""

    mutant: Mutant
    seeds: int


@dataclass(frozen=True, slots=True)
class Lame:
    """It could not be tried: its edits do not fit the code any more, or break it altogether."""

    mutant: Mutant
    reason: str


Hunted = Caught | Escaped | Lame


class _Line(msgspec.Struct):
    seed: int | None = None
    seeds: int = 0
    invariant: str = ""
    sentence: str = ""


def hunt(mutant: Mutant, seeds: range) -> Hunted:
    """Run seeds, in a process in which the mutant lives, until one finds it; that has to pass without the mutant."""
    found = _ran(mutant, mutant.name, seeds)
    if isinstance(found, str):
        return Lame(mutant, found)
    if found.seed is None:
        return Escaped(mutant, found.seeds)
    unbroken = _ran(mutant, "", range(found.seed, found.seed + 1))
    if isinstance(unbroken, str) or unbroken.seed is not None:
        return Lame(mutant, f"seed {found.seed} does not pass with the rule kept: {found.invariant}")
    return Caught(mutant, found.seed, seeds.index(found.seed) + 1, found.invariant, found.sentence)


def _ran(mutant: Mutant, name: str, seeds: range) -> _Line | str:
    """Run seeds of a mutant's scenarios with the mutant of this name, or with none; why not, if that broke."""
    command = [sys.executable, str(SCRIPT), str(mutant.table), name, str(seeds[0]), str(seeds[-1]), *mutant.scenarios]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1] if lines else f"it ended with status {ran.returncode}"
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=_Line)


def hunts(wanted: Sequence[Mutant], seeds: range, workers: int) -> Iterator[Hunted]:
    """Yield what became of each mutant, as it becomes known."""
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(hunt, mutant, seeds) for mutant in wanted]):
            yield done.result()
