"""Every distribution builds, installs alone with what it asks for, and is found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

FOUND = """
import json, sys
from txnframework.plugin import load_plugins
registry = load_plugins()
print(json.dumps({
    "plugins": [[one.role, one.name] for one in registry.describe()],
    "distributions": sorted({one.distribution for one in registry.describe()}),
    "commands": sorted(registry.commands()),
}))
"""
IMPORTED = """
import sys
import txnframework, txnframework.blocking, txnframework.cli
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
DRIVERS = ("sqlalchemy", "sqlite3", "alembic", "kazoo", "pyspark", "pyarrow", "pandas", "numpy")
EXTRAS = ("pytest", "click", "rich")


def run(*command: str | Path) -> str:
    """Run a command outside of the source tree; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TXN"))}
    done = subprocess.run(
        [str(part) for part in command], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of the core and of every plugin, each built from its own folder."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, *PLUGINS):
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, project)
    return folder


def installed(place: Path, wheels: Path, *requirements: str) -> Path:
    """Return the interpreter of a new environment with these requirements."""
    run(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--find-links", wheels, *requirements)
    return python


def test_the_core_installs_alone_and_imports_no_driver(wheels: Path, tmp_path: Path) -> None:
    """Without plugins it starts, finds none, and has imported no library of any backend."""
    python = installed(tmp_path / "venv", wheels, "txnframework")
    assert json.loads(run(python, "-c", FOUND)) == {"plugins": [], "distributions": [], "commands": []}
    imported = run(python, "-c", IMPORTED)
    assert not [driver for driver in (*DRIVERS, *EXTRAS) if f"'{driver}'" in imported]


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_installs_alone_and_is_found(folder: Path, wheels: Path, tmp_path: Path) -> None:
    """What it declares is there after ``pip install`` of it alone, and no plugin comes along that it did not name."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = installed(tmp_path / "venv", wheels, folder.name)
    found = json.loads(run(python, "-c", FOUND))
    assert found["plugins"] or found["commands"]
    asked_for = {one.split(">")[0].split("[")[0] for one in project["dependencies"]}
    assert set(found["distributions"]) <= {folder.name, *asked_for}
