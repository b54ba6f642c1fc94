"""The distribution of a new plugin passes its tests at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from txnframework.cli._app import run

ROOT = Path(__file__).parents[3]
SUMMARY = "TestAcmeTurns (AcmeTurnsHarness)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_tests_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests run the suite of the role on the entry point's provider, and print its certificate."""
    assert run(["new-plugin", "acme-turns", "--output", "json"]) == 0
    written = json.loads(capsys.readouterr().out)
    plugin = folder / written["folder"]
    assert sorted(str(one.relative_to(plugin)) for one in plugin.rglob("*") if one.is_file()) == written["files"]
    done = run_tests(plugin)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SUMMARY in done.stdout
    assert "known deviations: none" in done.stdout


def test_its_tests_can_fail(folder: Path) -> None:
    """A rule that the plugin breaks fails a test of the suite."""
    assert run(["new-plugin", "acme_turns"]) == 0
    plugin = folder / "txnframework-acme-turns"
    source = plugin / "src" / "txnframework_acme_turns" / "plugin.py"
    text = source.read_text(encoding="utf-8")
    broken = text.replace("waiting[: self._permits[taker]]", "waiting")
    assert broken != text
    source.write_text(broken, encoding="utf-8")
    assert run_tests(plugin).returncode == 1


def run_tests(plugin: Path) -> subprocess.CompletedProcess[str]:
    """Run its tests with what an installer writes: the path of the sources, and the entry points."""
    project = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = plugin / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = "".join(f"{name} = {module}\n" for name, module in project["entry-points"]["txnframework"].items())
    (metadata / "entry_points.txt").write_text(f"[txnframework]\n{points}")
    environment = os.environ | {"PYTHONPATH": str(plugin / "src")}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    return subprocess.run(
        command, cwd=plugin, env=environment, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.parametrize("name", ["Acme", "9lives", "a__b", "a.b", "../up", ""])
def test_other_names_are_refused(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new-plugin", name]) == 2
    assert "invalid name of a plugin" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "txnframework-turns").mkdir()
    assert run(["new-plugin", "turns"]) == 2
    assert "txnframework-turns already exists" in capsys.readouterr().err
    assert not list((folder / "txnframework-turns").iterdir())


def test_the_template_fits_this_core() -> None:
    """A new distribution accepts this version, and no later minor version."""
    example = tomllib.loads((ROOT / "plugins/txnframework-example/pyproject.toml").read_text(encoding="utf-8"))
    template = ROOT / "src/txnframework/cli/plugin_template/pyproject.toml"
    project = tomllib.loads(template.read_text(encoding="utf-8"))["project"]
    assert project["dependencies"][0] == example["project"]["dependencies"][0]
    assert project["optional-dependencies"] == example["project"]["optional-dependencies"]
    assert project["requires-python"] == example["project"]["requires-python"]
