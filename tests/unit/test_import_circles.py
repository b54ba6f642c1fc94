"""Packages of the core, and modules of a distribution, have no circular imports, not even for types."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src" / "txnframework"
PACKAGES = sorted(one.parent for one in [CORE / "__init__.py", *ROOT.glob("plugins/*/src/*/__init__.py")])
FACADE = "txnframework"
"""The package's own ``__init__`` and the names that it re-exports."""


def rooms_of(package: Path) -> dict[str, set[str]]:
    """Return the rooms of a package, its direct subpackages and modules, each with the rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for module in sorted(package.rglob("*.py")):
        room = _room(package, module.relative_to(package).parts[0].removesuffix(".py"))
        for name in _imported(module):
            parts = name.split(".")
            if parts[0] == package.name:
                rooms.setdefault(room, set()).add(_room(package, parts[1] if len(parts) > 1 else ""))
    return {room: imported - {room} for room, imported in rooms.items()}


def modules_of(package: Path) -> dict[str, set[str]]:
    """Return the modules of a package, each with those of the same package that it imports; an ``__init__`` is one."""
    files = {_dotted(package, module): module for module in sorted(package.rglob("*.py"))}
    modules: dict[str, set[str]] = {}
    for name, module in files.items():
        modules[name] = {_module_of(one, files) for one in _imported(module)} & files.keys() - {name}
    return modules


def _module_of(name: str, files: Mapping[str, Path]) -> str:
    """Return the module that defines an imported name, or the name's first part if it is of another package."""
    while name not in files and "." in name:
        name = name.rpartition(".")[0]
    return name


def _dotted(package: Path, module: Path) -> str:
    return ".".join(module.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def circle_in(rooms: dict[str, set[str]]) -> list[str] | None:
    """Return the rooms of one circle, the first one again at the end, or None where there is none."""
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as exc:
        circle: list[str] = exc.args[1]
        return circle
    return None


def _room(package: Path, name: str) -> str:
    there = name != "__init__" and ((package / name).is_dir() or (package / f"{name}.py").exists())
    return name if name and there else FACADE


def _imported(module: Path) -> list[str]:
    """Return the full name of everything that a module imports, at whatever place in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative imports are not followed here"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_rooms_of_the_core_import_each_other_in_one_direction() -> None:
    """A package imports only lower packages, so that it can be read, tested and changed without the others."""
    rooms = rooms_of(CORE)
    assert {"errors", "model", "plugin", "config", "broker", "client"} <= rooms.keys()
    assert circle_in(rooms) is None


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_modules_of_a_distribution_import_each_other_in_one_direction(package: Path) -> None:
    """A reader can start with a module that imports nothing."""
    modules = modules_of(package)
    assert modules
    assert circle_in(modules) is None


@pytest.mark.parametrize(
    "statement",
    [
        "import txnframework.upper.part",
        "from txnframework import upper",
        "from txnframework.upper import name",
        "if TYPE_CHECKING:\n    from txnframework.upper.part import name",
        "def late():\n    from txnframework.middle import name",
    ],
)
def test_a_circle_is_found(tmp_path: Path, statement: str) -> None:
    """Circles are found for every form of import, and through a third package."""
    package = tmp_path / "txnframework"
    for room, text in (
        ("upper", "from txnframework.middle import name"),
        ("middle", "from txnframework.lower import name"),
        ("lower", statement),
    ):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text(text, encoding="utf-8")
    circle = circle_in(rooms_of(package))
    assert circle is not None
    assert {"lower", "middle"} <= set(circle)
    modules = circle_in(modules_of(package))
    assert modules is not None
    assert {"txnframework.lower", "txnframework.middle"} <= set(modules)
