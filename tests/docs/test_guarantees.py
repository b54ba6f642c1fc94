"""Every promise on the pages of guarantees names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "reference" / "guarantees.md", ROOT / "docs" / "explanation" / "spark.md")
HEADINGS = ("held by", "shown by")
SUITES = ROOT / "src" / "txnframework" / "testing" / "_suites"


def rows_of(page: Path) -> list[tuple[str, str]]:
    """Return the rows of the tables whose second column names tests."""
    tables = re.findall(r"(?:^\|.*\|\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    rows = [re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE) for table in tables]
    return [row for table in rows if table[0][1] in HEADINGS for row in table[1:]]


ROWS = [row for page in PAGES for row in rows_of(page)]


def file_of(name: str) -> Path:
    """Return the file that the page means: as it says itself, a test, a suite, or a test of a plugin."""
    first, _, rest = name.partition("/")
    for path in (ROOT / "tests" / name, SUITES / name, ROOT / "plugins" / first / "tests" / rest):
        if path.is_file():
            return path
    raise FileNotFoundError(name)


def names_in(path: Path) -> set[str]:
    """Return the names of the tests, and of the rules of a suite, that a file has."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, functions)}


@pytest.mark.parametrize(("promise", "held_by"), ROWS, ids=[promise for promise, _ in ROWS])
def test_each_promise_is_held(promise: str, held_by: str) -> None:
    """By at least one test, and each one that is named exists where it is said to be."""
    assert promise.endswith(".")
    files = re.findall(r"`([\w./-]+\.py)`: ((?:`test_\w+`(?:, )?)+)", held_by)
    assert files
    assert "; ".join(f"`{name}`: {tests}" for name, tests in files) == held_by, "something else stands in this cell"
    for name, tests in files:
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named <= names_in(file_of(name)), f"{name} has none of {named - names_in(file_of(name))}"


def test_the_page_is_read_at_all() -> None:
    """Otherwise a page of another form would hold all of its promises."""
    assert len(ROWS) > 70
