"""A Python transform is found without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from txnframework.config import KeyPath
from txnframework.errors import ConfigurationError
from txnframework_spark.pipeline.python_transform import find_function

SOURCE = """
import somewhere_that_is_not_there
from elsewhere import brought as renamed

raise SystemExit("this module was run")

if True:
    def branched(spark, frames): ...
else:
    other = None
try:
    from fast import tried
except ImportError:
    def fallback(spark, frames): ...


class Callable:
    def method(self): ...


async def waits(): ...
assigned = attribute.of = lambda spark, frames: None
"""
FOUND = ("renamed", "branched", "other", "tried", "fallback", "Callable", "waits", "assigned")


@pytest.fixture
def place(tmp_path: Path) -> KeyPath:
    package = tmp_path / "above_of_a_test" / "below"
    package.mkdir(parents=True)
    (tmp_path / "above_of_a_test" / "__init__.py").write_text("raise SystemExit('this package was run')")
    (package / "__init__.py").write_text("raise SystemExit('this package was run')")
    for where in (package / "module.py", tmp_path / "module_of_a_test.py"):
        where.write_text(SOURCE)
    (tmp_path / "everything.py").write_text("from elsewhere import *")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "nul.py").write_bytes(b"a\0b")
    return KeyPath("transform.python", str(tmp_path / "pipeline.toml"))


@pytest.mark.parametrize("function", FOUND)
@pytest.mark.parametrize("module", ["module_of_a_test", "above_of_a_test.below.module"])
def test_found(place: KeyPath, module: str, function: str) -> None:
    """Whatever gives the name; nothing of it is imported, nor are the packages above."""
    find_function(f"{module}:{function}", place)
    find_function("everything:anything", place)
    assert module.partition(".")[0] not in sys.modules


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("module_of_a_test:method", "has no function method"),
        ("module_of_a_test:nothing", "has no function nothing"),
        ("not_there_of_a_test:f", "module not_there_of_a_test not found, neither in"),
        ("above_of_a_test.not_there:f", "module above_of_a_test.not_there not found"),
        ("module_of_a_test.inner:f", "module module_of_a_test.inner not found"),
        ("broken:f", r"is not valid Python \(broken.py, line 1\)"),
        ("nul:f", "is not valid Python"),
    ],
)
def test_refused(place: KeyPath, name: str, said: str) -> None:
    """In one sentence that names the place in the file."""
    with pytest.raises(ConfigurationError, match=said):
        find_function(name, place)


def test_what_is_installed_is_found(place: KeyPath) -> None:
    """As the module of a distribution, or of the standard library."""
    find_function("txnframework.cli:main", place)
    find_function("json:dumps", place)
