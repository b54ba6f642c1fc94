"""Measure the performance targets, as ratios taken in one run: ``python bench/run.py --backend postgresql``.

Absolute times belong to one machine on one day; a ratio of two things measured in turn, in the same process and on
the same disk, can be compared. Each ratio is the median over several rounds, each of which takes both sides in turn.
Needs the extras ``embedded`` and ``cli``, and ``txnframework-legacy``; for PostgreSQL, ``txnframework-sql[postgresql]``
and its extra ``testing-postgresql``, or a server that TXN_TEST_POSTGRESQL_URL names; for ZooKeeper,
``txnframework-zookeeper`` and PySpark, or the servers that TXN_TEST_ZOOKEEPER_HOSTS names.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from backends import BACKENDS
from figures import FIGURES
from measurement import Found, Run, machine
from report import document, table
from rich.console import Console

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the chosen figures, show them, and store them with a description of the machine."""
    arguments = _arguments()
    console = Console(stderr=True)
    before = machine()
    found: dict[str, list[Found]] = {}
    with console.status("starting") as status:
        for name in arguments.only or FIGURES[arguments.backend]:
            with (
                tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
                BACKENDS[arguments.backend](Path(directory)) as backend,
            ):

                def progress(step: str, name: str = name) -> None:
                    status.update(f"{name}: {step}")

                progress("preparing")
                before.update(backend.versions)
                run = Run(backend, arguments.rounds, arguments.quick, progress)
                found[name] = asyncio.run(FIGURES[arguments.backend][name](run))
            for one in found[name]:
                console.print(f"{one.what}: {one.ratio:.3g}")
    kept = document(found, {"backend": arguments.backend, "quick": arguments.quick, "machine": before})
    if arguments.keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{arguments.keep}.json").write_text(kept + "\n", encoding="utf-8")
    if arguments.output == "json":
        print(kept)
    else:
        Console().print(table(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=list(BACKENDS), default="sqlite")
    parser.add_argument("--only", action="append", metavar="FIGURE", help="run this figure; may be repeated")
    parser.add_argument("--quick", action="store_true", help="use smaller sizes, to see whether it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--keep", metavar="NAME", help="store the JSON as bench/results/NAME.json")
    parser.add_argument("--directory", type=Path, help="create the databases here, on the disk to be measured")
    arguments = parser.parse_args()
    figures = FIGURES[arguments.backend]
    if unknown := [name for name in arguments.only or () if name not in figures]:
        parser.error(f"there is no figure {unknown[0]} of {arguments.backend}; there are {', '.join(figures)}")
    return arguments


if __name__ == "__main__":
    main()
