"""
Compare two working trees: ``python bench/beside.py FOLDER [--rounds 5] [--freeze]``, and options of ``peers.py``.

``--script`` names another script of this directory that has ``--json``, such as ``many_segments.py``, and takes its
options. Each round runs the script of this tree twice, in alternating order, each time in a new process: with the
packages of FOLDER, and with those of this tree. It prints the median of both sides, and the median and range of the
rounds' ratios.
``--freeze`` applies to this tree only. With this tree as FOLDER, it shows what ``gc.freeze()`` changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
Figures = dict[tuple[str, str], float]
"""By backend and name of the figure."""


def figures(script: str, tree: Path, options: list[str]) -> Figures:
    """Return the figures of one run with the packages of a tree."""
    packages = [tree / "src", *sorted(tree.glob("plugins/*/src"))]
    run = subprocess.run(
        [sys.executable, HERE / script, "--json", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = json.loads(run.stdout)
    return {(backend, name): value for backend, row in found.items() for name, value in row.items()}


def main() -> None:
    """Run the rounds, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--script", default="peers.py")
    chosen, options = parser.parse_known_args()
    before: list[Figures] = []
    after: list[Figures] = []
    sides = [(before, chosen.folder.resolve(), options)]
    sides.append((after, HERE.parent, [*options, *(["--freeze"] if chosen.freeze else [])]))
    for number in range(chosen.rounds):
        for found, tree, given in sides if number % 2 == 0 else reversed(sides):
            found.append(figures(chosen.script, tree, given))
    table = Table("store", "figure", "before", "after", "ratio", "from", "to")
    for backend, name in after[0]:
        pairs = [(one[backend, name], other[backend, name]) for one, other in zip(before, after, strict=True)]
        ratios = sorted(other / one for one, other in pairs)
        shown = [statistics.median(values) for values in zip(*pairs, strict=True)]
        shown += [statistics.median(ratios), ratios[0], ratios[-1]]
        table.add_row(backend, name, *(f"{value:,.2f}" for value in shown))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
