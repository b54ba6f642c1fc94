"""The package is layered as its docstring says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import txnframework_zookeeper

PACKAGE = Path(txnframework_zookeeper.__file__).parent


def imported(folder: str) -> set[str]:
    """Return the modules of this package that those in a folder import from outside of it."""
    found: set[str] = set()
    for path in (PACKAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    own = f"{PACKAGE.name}."
    return {name.removeprefix(own) for name in found if name.startswith(own) and not name.startswith(own + folder)}


@pytest.mark.parametrize(
    ("folder", "below"), [("connection", {"_options"}), ("tree", {"connection._requests"})], ids=["connection", "tree"]
)
def test_what_stands_below(folder: str, below: set[str]) -> None:
    """The connection knows no records; the tree knows only nodes."""
    assert imported(folder) == below
