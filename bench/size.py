"""
Count the lines of the tree: ``python bench/size.py``.

For each part of the tree it prints the lines of the Python modules that git tracks, by kind: code, imports, docstrings,
comments and blank lines. The first table has the source, which is what is installed. The second one has tests,
measurements and examples. Generated modules are left out. The third table counts what makes a tree hard to read.
"""

from __future__ import annotations

import ast
import subprocess
import tokenize
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
KINDS = ("code", "imports", "docstrings", "comments", "blank")
SMALL_MAX = 49
LARGE_MIN = 400
MANY_PARAMETERS = 6
TOO_MANY_PARAMETERS = 8
WANTED = {"source": 112_000, "tests, bench, examples": 95_000}


class Module(NamedTuple):
    """What is counted of one module."""

    kinds: Counter[str]
    parameters: list[int]
    """Of each function, without ``self`` and ``cls``."""

    @property
    def lines(self) -> int:
        return self.kinds.total()


def count(path: Path) -> Module:
    """Return the lines of each kind; a line with code and a comment is code."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    kind = ["code" if line.strip() else "blank" for line in lines]
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
                kind[token.start[0] - 1] = "comments"
    parameters = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kind, node, "imports")
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    _mark(kind, statement, "docstrings")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parameters.append(len([one for one in named if one.arg not in ("self", "cls")]))
    return Module(Counter(kind), parameters)


def _mark(kind: list[str], node: ast.stmt, name: str) -> None:
    for line in range(node.lineno - 1, node.end_lineno or node.lineno):
        kind[line] = name


def part_of(path: Path) -> tuple[str, str]:
    """Return the table and the row to which a module belongs."""
    first, *rest = path.parts
    if first == "src":
        return "source", f"core {rest[1]}" if len(rest) > 2 else "core"
    if first == "plugins":
        plugin = rest[0].removeprefix("txnframework-")
        return ("source" if rest[1] == "src" else "tests, bench, examples"), f"plugin {plugin}"
    return "tests, bench, examples", f"{first}/{rest[0]}" if len(rest) > 1 else first


def tracked() -> list[Path]:
    """Return the Python modules that git tracks and nothing has generated."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.splitlines() if not name.endswith("_pb2.py") and (ROOT / name).exists()]


def main() -> None:
    """Print the tables."""
    modules: dict[tuple[str, str], list[Module]] = {}
    for path in tracked():
        modules.setdefault(part_of(path), []).append(count(ROOT / path))
    console = Console()
    for title, wanted in WANTED.items():
        rows = {name: some for (part, name), some in modules.items() if part == title}
        table = Table("part", "modules", "lines", *KINDS, title=title, show_footer=True, padding=(0, 0))
        table.columns[0].no_wrap = True
        for column in table.columns[1:]:
            column.justify = "right"
        for name, some in sorted(rows.items(), key=lambda row: -sum(one.lines for one in row[1])):
            table.add_row(name, *_figures(some))
        for column, figure in zip(table.columns, ["all", *_figures([*chain(*rows.values())])], strict=True):
            column.footer = figure
        table.caption = f"wanted: at most {wanted:,} lines"
        console.print(table)
    source = [one for (part, _), some in modules.items() if part == "source" for one in some]
    parameters = [number for module in source for number in module.parameters]
    readable = Table("in the source", "", title="what is hard to read")
    readable.columns[1].justify = "right"
    readable.add_row(f"modules of at most {SMALL_MAX} lines", str(sum(one.lines <= SMALL_MAX for one in source)))
    readable.add_row(f"modules of at least {LARGE_MIN} lines", str(sum(one.lines >= LARGE_MIN for one in source)))
    for least in (MANY_PARAMETERS, TOO_MANY_PARAMETERS):
        readable.add_row(f"functions of at least {least} parameters", str(sum(one >= least for one in parameters)))
    console.print(readable)


def _figures(modules: list[Module]) -> list[str]:
    kinds = sum((one.kinds for one in modules), Counter())
    return [str(len(modules)), f"{kinds.total():,}", *(f"{kinds[kind]:,}" for kind in KINDS)]


if __name__ == "__main__":
    main()
