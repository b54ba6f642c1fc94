"""Each distribution uses only its own private names, and none of a library."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    ROOT / "src" / "txnframework",
    *sorted(path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py")),
    ROOT / "bench",
)

DOCUMENTED = frozenset(
    {
        "_asdict",
        "_fields",
        "_make",
        "_replace",  # of named tuples
        "os._exit",
        "sys._getframe",
        "asyncio._get_running_loop",  # exported by asyncio for event loops, and the simulation is one
        "asyncio._set_running_loop",
    }
)
"""Names with an underscore that the documentation of Python, or ``__all__`` of its module, makes public."""

EXCEPTIONS = {
    # asyncio has no public way to know which callback a handle runs, and the simulation names each step by it.
    "handle._callback",
    # pytest has no public list of the fixtures that a test takes as arguments, apart from those used automatically.
    "pyfuncitem._fixtureinfo",
}
"""Private names that are used, with the reason."""


@dataclass
class Package:
    """Private names that a package defines, as methods, attributes, functions or classes, and its modules."""

    name: str
    modules: dict[Path, ast.Module]
    defined: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Use:
    """A use of another distribution's private name: its place and its text."""

    module: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


def read(sources: Iterable[Path]) -> list[Package]:
    """Return the packages in these folders."""
    packages = []
    for folder in sources:
        # A compiler wrote the modules of protobuf messages, and it may use what belongs to its library.
        paths = [path for path in sorted(folder.rglob("*.py")) if not path.stem.endswith("_pb2")]
        modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        package = Package(folder.name, modules)
        for tree in modules.values():
            package.defined |= set(_definitions(tree))
        packages.append(package)
    return packages


def foreign_uses(packages: list[Package]) -> Iterator[Use]:
    """Yield each use of a private name that its package does not define."""
    everywhere = set[str]().union(*(package.defined for package in packages))
    for package in packages:
        for path, tree in package.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute):
                    # A subclass may use what a base class of another distribution of ours keeps for subclasses.
                    defined = everywhere if _is_own(node.value) else package.defined
                    if is_private(node.attr) and node.attr not in defined and not _is_documented(node):
                        yield Use(path, node.lineno, ast.unparse(node))
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    for name in _imported(node):
                        if any(map(is_private, name.split("."))) and name.partition(".")[0] != package.name:
                            yield Use(path, node.lineno, name)


def is_private(name: str) -> bool:
    """Return whether a name is private by its underscore; names such as ``__init__`` are the language's."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _is_own(value: ast.expr) -> bool:
    """Return whether an attribute is of ``self``, ``cls`` or ``super()``."""
    if isinstance(value, ast.Call):
        value = value.func
        return isinstance(value, ast.Name) and value.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _is_documented(node: ast.Attribute) -> bool:
    return node.attr in DOCUMENTED or ast.unparse(node) in DOCUMENTED


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id  # a field of a class, or a variable of a module
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.rpartition(".")[2] for alias in node.names)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level or node.module == "__future__" else [f"{node.module}.{alias.name}" for alias in node.names]


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    """Return the uses of private names in the whole tree."""
    return list(foreign_uses(read(SOURCES)))


def test_private_names_of_others_are_not_used(uses: list[Use]) -> None:
    """Private names may change in any release; a plugin uses the public names of the core."""
    wrong = [use for use in uses if use.text not in EXCEPTIONS]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_exception_is_needed(uses: list[Use]) -> None:
    """An unneeded exception would hide the next use."""
    assert {use.text for use in uses} >= EXCEPTIONS


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("frame._jdf", "frame._jdf"),
        ("self.frame._jdf", "self.frame._jdf"),
        ("self._inherited", "self._inherited"),
        ("open()._handle.name", "open()._handle"),
        ("client._state = 1", "client._state"),
        ("import library._core", "library._core"),
        ("from library import _core", "library._core"),
        ("from library._core import name", "library._core.name"),
        ("def late():\n    from other._part import name", "other._part.name"),
        ("from other import part\npart._kept", "part._kept"),
        ("self._kept", None),
        ("super()._kept", None),
        ("self._own = 1\nwaiter._own", None),
        ("from one._part import name", None),
        ("row._replace(a=1)", None),
        ("value.__class__", None),
    ],
)
def test_uses_are_told_apart(tmp_path: Path, statement: str, found: str | None) -> None:
    """Uses by attribute and by import are found, except for own and inherited names."""
    for package, text in (("one", statement), ("other", "class Base:\n    def _kept(self): ...")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text, encoding="utf-8")
    found_uses = [use.text for use in foreign_uses(read([tmp_path / "one", tmp_path / "other"]))]
    assert found_uses == ([found] if found else [])
