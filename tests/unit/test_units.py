"""The name of every time has its unit, because mixing up milliseconds and seconds is wrong by a factor of 1000."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED_BY_OTHERS = {
    # An event loop, whose methods have the names that asyncio gives them.
    ROOT / "plugins/txnframework-simulation/src/txnframework_simulation/simulator/loop.py",
}
SOURCES = sorted({*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")} - NAMED_BY_OTHERS)
TIMES = re.compile(r"(^|_)(timeout|delay|interval|deadline|age|duration|patience|latency|retention|linger|skew|wait)$")
NUMBERS = re.compile(r"\b(int|float)\b")


def numbers_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every parameter and every field that is a number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            name, annotation, line = node.arg, node.annotation, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            target = node.target
            name = target.id if isinstance(target, ast.Name) else target.attr
            annotation, line = node.annotation, node.lineno
        else:
            continue
        if NUMBERS.search(ast.unparse(annotation)):
            yield line, name


def without_unit(source: str) -> list[tuple[int, str]]:
    return sorted((line, name) for line, name in numbers_of(ast.parse(source)) if TIMES.search(name))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_times_name_their_unit(path: Path) -> None:
    """A number that is a time ends in ``_ms`` or ``_s``, as a parameter, as a field and as a setting."""
    assert without_unit(path.read_text(encoding="utf-8")) == []


def test_a_time_without_a_unit_is_found() -> None:
    """A time without a unit fails the rule above."""
    source = "def f(timeout: float, timeout_ms: int, wait: Waiting) -> None: ...\nclass A:\n    retry_delay: int = 3"
    assert without_unit(source) == [(1, "timeout"), (3, "retry_delay")]
