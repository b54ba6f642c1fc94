"""Measure Spark over topics, as ratios taken in one run: ``python bench/spark/run.py``.

Absolute times belong to one machine on one day; a ratio of two things done in turn by the same Spark can be compared.
Each is the median over several rounds, after one that does not count. Needs the extras ``embedded`` and ``cli``,
``txnframework-spark``, and Java 17 or later. The input is written once, with ``--directory`` also for later runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # the common parts of all figures are one folder up

import pyspark
from commits import fixed_cost, header_writes
from copies import copying_over_files, transactions_over_none
from measurement import Found, machine
from memory import memory_by_rows
from plans import planning_a_backlog
from reads import all_columns_over_parquet, reading_over_parquet
from report import document, table
from rich.console import Console
from stage import Stage
from triggers import small_triggers

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = {
    "read": reading_over_parquet,
    "columns": all_columns_over_parquet,
    "memory": memory_by_rows,
    "copy": copying_over_files,
    "transactions": transactions_over_none,
    "decide": header_writes,
    "micro-batch": fixed_cost,
    "triggers": small_triggers,
    "planning": planning_a_backlog,
}


def main() -> None:
    """Run the chosen figures, show them, and store them with a description of the machine."""
    arguments = _arguments()
    console = Console(stderr=True)
    before = {**machine(), "pyspark": pyspark.__version__}
    found: dict[str, list[Found]] = {}
    with tempfile.TemporaryDirectory() as scratch, console.status("starting") as status:
        directory = arguments.directory or Path(scratch)
        with Stage(directory, arguments.rows, arguments.rounds, status.update) as stage:
            for name in arguments.only or FIGURES:
                found[name] = FIGURES[name](stage)
                for one in found[name]:
                    console.print(f"{one.what}: {one.ratio:.3g}")
    kept = document(found, {"backend": "sqlite", "rows": arguments.rows, "machine": before})
    if arguments.keep:
        (RESULTS / f"{arguments.keep}.json").write_text(kept + "\n", encoding="utf-8")
    if arguments.output == "json":
        print(kept)
    else:
        Console().print(table(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="FIGURE", choices=FIGURES, help="may be repeated")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--keep", metavar="NAME", help="store the JSON as bench/results/NAME.json")
    parser.add_argument("--directory", type=Path, help="create the input in this directory, and use it again later")
    return parser.parse_args()


if __name__ == "__main__":
    main()
