"""``txnframework check`` where the stores' plugins are installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from txnframework.cli._app import run
from txnframework.plugin import Command, hookimpl

pytestmark = pytest.mark.usefixtures("in_memory")

BROKEN = "plugin 'hopeless' (passed in by the program) failed in its hook txnframework_commands: RuntimeError: boom"


def broken() -> SimpleNamespace:
    @hookimpl
    def txnframework_commands() -> list[Command]:
        raise RuntimeError("boom")

    return SimpleNamespace(__name__="hopeless", txnframework_commands=txnframework_commands)


def test_check_prints_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the same facts as the text; with --connect also the reply of each store.

    The exit status reports success.
    """
    path = tmp_path / "txn.toml"
    path.write_text(
        f'[metadata]\nurl = "memory://{tmp_path.name}"\n[ledger]\nurl = "memory://{tmp_path.name}"\n'
        "[retention]\ntime_ms = 60000\n"
    )
    assert run(["check", str(path), "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["metadata"], found["probes"]) == (str(path), f"memory://{tmp_path.name}", [])
    assert len(found["retention"]) == 1


def test_check_refuses_only_what_a_broken_plugin_would_break(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken plugin is named; the check fails only if the configuration needs that plugin."""
    path = tmp_path / "txn.toml"
    path.write_text(f'[metadata]\nurl = "memory://{tmp_path.name}"\n[ledger]\nurl = "memory://{tmp_path.name}"\n')
    assert run(["check", str(path)], (broken(),)) == 0
    assert capsys.readouterr().err == f"Note: a plugin is left out: {BROKEN}\n"
    path.write_text('[metadata]\nurl = "zz:"\n')
    assert run(["check", str(path)], (broken(),)) == 2
    assert capsys.readouterr().err.count(BROKEN) == 1
