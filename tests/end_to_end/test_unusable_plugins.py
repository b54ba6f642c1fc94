"""An installed plugin that cannot be used stops neither a program nor a command that does not need it."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import txnframework
from txnframework.cli import main
from txnframework.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("in_memory", "unusable")

REASON = "zz-unusable 1.0 cannot be loaded"
Configure = Callable[[str], Path]


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a third-party distribution whose driver is missing."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "zz_unusable.py").write_text("import zz_driver_that_is_missing\n")
    info = tmp_path / "zz_unusable-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zz-unusable\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[txnframework]\nzz_unusable = zz_unusable\n")
    importlib.invalidate_caches()


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Return a function that writes a configuration with stores of this scheme."""

    def write(scheme: str) -> Path:
        path = tmp_path / "txn.toml"
        url = f'url = "{scheme}://{tmp_path.name}"\n'
        path.write_text(f"[metadata]\n{url}[ledger]\n{url}")
        return path

    return write


def test_a_program(configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
    """The program gets a warning and works; a store that needs the plugin is refused with the reason."""

    async def work(path: Path) -> None:
        async with txnframework.open(path) as client:
            await client.create_topic("orders")

    asyncio.run(work(configure("memory")))
    (warned,) = [one for one in caplog.records if REASON in one.getMessage()]
    assert warned.levelname == "WARNING"
    with pytest.raises(ConfigurationError, match=f"left out: {REASON}"):
        asyncio.run(work(configure("zz")))


def test_a_command(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a note and works; it fails if the configuration needs the plugin."""
    assert main(["--config", str(configure("memory")), "topic", "create", "orders"]) == 0
    note = capsys.readouterr().err
    assert note.startswith(f"Note: a plugin is left out: {REASON}")
    assert main(["--config", str(configure("zz")), "topic", "create", "orders"]) == 2
    assert f"left out: {REASON}" in capsys.readouterr().err.splitlines()[-1]


def test_doctor(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    """Doctor prints a remedy for the plugin, and checks everything else."""
    assert main(["--config", str(configure("memory")), "doctor", "--output", "json"]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert REASON in found["plugins"]["found"]
    assert found["plugins"]["remedy"]
    assert found["configuration"]["found"].endswith("valid")
    assert "answers, in" in found["metadata store"]["found"]
