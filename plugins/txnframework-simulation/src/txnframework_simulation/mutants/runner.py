"""
Runs the simulation over code in which one rule is broken. It is a script, so that no edited module is imported earlier.

``python runner.py TABLE NAME FIRST LAST SCENARIO...`` runs these seeds until one finds a violation. It prints the
result as one line of JSON: ``{"seed": 7, "invariant": "...", "sentence": "..."}``, or ``{"seeds": 5000}``.
"""

from __future__ import annotations

import json
import logging
import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

Edits = dict[str, list[tuple[str, str]]]
"""By module: pairs of a text and its replacement."""

TABLE = Path(__file__).with_name("mutants.toml")
"""The mutants of the protocol's rules; a plugin has a file of its own."""


def apply_edits(source: str, edits: Sequence[tuple[str, str]], module: str) -> str:
    """Return a source with its edits applied; ValueError unless each piece occurs exactly once."""
    for find, replace in edits:
        if source.count(find) != 1:
            raise ValueError(f"{module} holds this {source.count(find)} times, not once: {find.strip()}")
        source = source.replace(find, replace)
    return source


class _Loader(SourceFileLoader):
    """Loads a module from its edited source; does not use or change the compiled cache of the module."""

    def __init__(self, name: str, path: str, edits: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        code: CodeType = compile(apply_edits(source, self._edits, fullname), self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, edits: Edits) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._edits:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, self._edits[fullname])
        return spec


def read_table(file: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Return the mutants of a file, by name; the paths of scenarios are relative to its folder."""
    with file.open("rb") as opened:
        found = {one["name"]: one for one in tomllib.load(opened)["mutant"]}
    for one in found.values():
        names = one["scenarios"]
        one["scenarios"] = [str(file.parent / name) if name.endswith(".toml") else name for name in names]
    return found


def edits_by_module(table: dict[str, Any]) -> Edits:
    """Return a mutant's edits by module."""
    found: Edits = {}
    for one in table["edits"]:
        found.setdefault(one["module"], []).append((one["find"], one["replace"]))
    return found


def main(table: Path, name: str, first: int, last: int, scenarios: tuple[str, ...]) -> None:
    """Run the simulation over code with a broken rule, or without a name over unchanged code."""
    edits = edits_by_module(read_table(table)[name]) if name else {}
    sys.meta_path.insert(0, _Finder(edits))
    print(json.dumps(_first_violation(range(first, last + 1), scenarios)))  # noqa: T201 - that is what it is for
    missing = sorted(set(edits) - set(sys.modules))
    if missing:
        raise SystemExit(f"what was to be broken was never imported: {', '.join(missing)}")


def _first_violation(seeds: range, names: tuple[str, ...]) -> dict[str, Any]:
    from txnframework_simulation.simulator.run import run
    from txnframework_simulation.simulator.scenario import load_scenario

    logging.disable(logging.CRITICAL)  # errors are expected here
    scenarios = [load_scenario(name) for name in names]
    for seed in seeds:
        for violation in run(scenarios[seed % len(scenarios)], seed).violations:
            return {"seed": seed, "invariant": violation.invariant, "sentence": violation.sentence}
    return {"seeds": len(seeds)}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, because its modules belong to a package
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), tuple(sys.argv[5:]))
