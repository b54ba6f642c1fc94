"""
Every distribution builds, may be published, installs alone, is found and has a bill of materials (SBOM).

Everything is installed from what was built, into an empty environment, and runs outside of the source tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
DEPLOYMENTS = {
    "memory": {"txnframework-memory"},
    "nats": {"txnframework-nats"},
    "postgresql": {"txnframework-sql"},
    "sql": {"txnframework-sql"},
    "zookeeper": {"txnframework-sql", "txnframework-zookeeper"},
}
"""The extras that install a deployment: the plugins of its stores."""
EVERY_DEPLOYMENT = {"txnframework-dispatchers", "txnframework-metadata"}


def run(*command: str | Path, folder: Path = Path("/")) -> str:
    """Run a command, by default outside of the source tree; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TXN"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Return a folder with wheel and sdist of the core and of every plugin, each built from its own folder.

    It stays where ``TXN_DIST`` names one.
    """
    folder = Path(os.environ.get("TXN_DIST") or tmp_path_factory.mktemp("built"))
    shutil.rmtree(folder, ignore_errors=True)
    for project in (ROOT, *PLUGINS):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project)
    return folder


@pytest.fixture(scope="session")
def sboms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for bills of materials, which stay there where ``TXN_SBOMS`` names one."""
    folder = Path(os.environ.get("TXN_SBOMS") or tmp_path_factory.mktemp("sboms"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def installed(place: Path, built: Path, *requirements: str) -> Path:
    """Return the interpreter of a new environment with these requirements."""
    python = place / "bin" / "python"
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, place)
    run(
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--find-links",
        built,
        *requirements,
    )
    return python


def test_the_core_installs_alone_and_imports_no_driver(built: Path, tmp_path: Path) -> None:
    """Without plugins it starts, finds none, and has imported no library of any backend."""
    python = installed(tmp_path / "venv", built, "txnframework")
    assert json.loads(run(python, "-c", FOUND)) == {"plugins": [], "distributions": [], "commands": []}
    imported = run(python, "-c", IMPORTED)
    assert not [driver for driver in (*DRIVERS, *EXTRAS) if f"'{driver}'" in imported]


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda path: path.name)
def test_what_is_built_has_the_license(folder: Path, built: Path) -> None:
    """Wheels and sdists contain the license."""
    text = (ROOT / "LICENSE").read_bytes()
    name = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"].replace("-", "_")
    (wheel,) = built.glob(f"{name}-*.whl")
    (sdist,) = built.glob(f"{name}-*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        (inside,) = [one for one in files.namelist() if one.endswith(".dist-info/licenses/LICENSE")]
        assert files.read(inside) == text
        (metadata,) = [one for one in files.namelist() if one.endswith(".dist-info/METADATA")]
        lines = files.read(metadata).decode().splitlines()
    assert {"License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(lines)
    with tarfile.open(sdist) as archive:
        inside = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/LICENSE")
        assert inside is not None
        assert inside.read() == text


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_installs_alone_and_is_found(folder: Path, built: Path, sboms: Path, tmp_path: Path) -> None:
    """What it declares is there after ``pip install`` of it alone, and no plugin comes along that it did not name."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = installed(tmp_path / "venv", built, folder.name)
    found = json.loads(run(python, "-c", FOUND))
    assert found["plugins"] or found["commands"]
    asked_for = {Requirement(one).name for one in project["dependencies"]}
    assert set(found["distributions"]) <= {folder.name, *asked_for}
    components = materials_of(python, sboms / f"{folder.name}.cdx.json")
    assert components[folder.name] == project["version"]
    assert {canonicalize_name(one) for one in asked_for} <= components.keys()


def test_what_is_built_may_be_published(built: Path) -> None:
    """The index accepts the metadata and can show the description of each file."""
    files = sorted(built.iterdir())
    assert len(files) == 2 * (1 + len(PLUGINS))
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


@pytest.mark.parametrize("extra", DEPLOYMENTS)
def test_one_line_installs_a_deployment(extra: str, built: Path, tmp_path: Path) -> None:
    """The extra of a store brings the transactions, the subscriptions and the command line, too, and no other store."""
    python = installed(tmp_path / "venv", built, f"txnframework[{extra}]")
    assert set(json.loads(run(python, "-c", FOUND))["distributions"]) == EVERY_DEPLOYMENT | DEPLOYMENTS[extra]
    assert "metadata" in run(python.with_name("txnframework"), "plugins")


def test_the_first_program_runs_where_nothing_else_is_installed(built: Path, tmp_path: Path) -> None:
    """What the README installs is enough for the program that it shows and for the command after it."""
    python = installed(tmp_path / "venv", built, "txnframework[sql]")
    program = shutil.copy(ROOT / "docs" / "examples" / "quickstart.py", tmp_path)
    assert run(python, program, folder=tmp_path) == "invoice for three apples\n"
    assert "invoices" in run(python.with_name("txnframework"), "topic", "list", folder=tmp_path)


def test_everything_installs_together(built: Path, tmp_path: Path) -> None:
    """The versions that all distributions ask for fit; what would be installed includes each plugin for users."""
    python = installed(tmp_path / "venv", built, "txnframework")
    uv = (sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--python", python, "--find-links", built)
    done = subprocess.run([*map(str, uv), "txnframework[all]"], capture_output=True, text=True, check=True, cwd="/")
    names = {folder.name for folder in PLUGINS} - {"txnframework-example"}
    assert not [name for name in names if f" + {name}==" not in done.stderr]


def test_a_new_plugin_installs_and_passes(built: Path, tmp_path: Path) -> None:
    """What the installed command writes builds as it is, is found by its entry point, and passes its tests."""
    python = installed(tmp_path / "venv", built, "txnframework[cli,testing]")
    run(python.with_name("txnframework"), "new-plugin", "turns", folder=tmp_path)
    plugin = tmp_path / "txnframework-turns"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", folder=plugin)
    (wheel,) = (plugin / "dist").glob("*.whl")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
    assert json.loads(run(python, "-c", FOUND))["plugins"] == [["dispatcher", "turns"]]
    assert "known deviations: none" in run(python, "-m", "pytest", folder=plugin)


def materials_of(python: Path, sbom: Path) -> dict[str, str]:
    """Write what is installed there as CycloneDX; return the version of each distribution in it."""
    # The library's own check against the schema takes longer than all the rest.
    form = ("--no-validate", "--output-reproducible", "--output-file", sbom)
    run(sys.executable, "-m", "cyclonedx_py", "environment", *form, python)
    document = json.loads(sbom.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    return {canonicalize_name(one["name"]): one["version"] for one in document["components"]}
