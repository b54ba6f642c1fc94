"""An operator copies a deployment, reads the progress, and compares the copies, all from a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_target(directory: Path, name: str) -> None:
    tables = (f'[{one}]\nurl = "sqlite:///{directory}/{name}.db"\n' for one in ("metadata", "ledger"))
    (directory / f"{name}.toml").write_text("".join(tables))


def test_a_copy_by_command(cli: Any, tmp_path: Path) -> None:
    """Planned, refused, made, repeated and compared; a person answers, and a program reads JSON."""
    write_target(tmp_path, "new")
    (tmp_path / "lost.toml").write_text('[metadata]\nurl = "memory://new"\n')
    cli("topic", "create", "orders")
    assert cli("topic", "produce", "orders", "one", "--transaction").status == 0
    for arguments, reason in (
        (("copy",), "--to FILE is missing"),
        (("audit",), "--to FILE is missing"),
        (("copy", "--to", "new.toml", "--output", "json"), "add --dry-run or --yes"),
        (("copy", "--reopen", "--keep-source"), "takes no other option"),
        (("copy", "--reopen", "--yes"), "is not closed by a copy"),
        (("copy", "--to", "txnframework.toml", "--yes"), "is the metadata store of both"),
        (("copy", "--to", "lost.toml", "--yes"), "memory://new exists only in this process"),
        (("copy", "--config", "lost.toml", "--to", "new.toml", "--yes"), "memory://new exists only in this process"),
    ):
        refused = cli(*arguments)
        assert refused.status != 0
        assert reason in refused.err
    asked = cli("copy", "--to", "new.toml", stdin=b"n\n")
    assert asked.status == 1
    assert asked.out.endswith("Nothing was changed.\n")
    planned = json.loads(cli("copy", "--to", "new.toml", "--dry-run", "--output", "json").out)
    assert (planned["dry_run"], planned["entries"], planned["audit"]) == (True, 1, None)
    made = json.loads(cli("copy", "--to", "new.toml", "--yes", "--output", "json").out)
    assert (made["entries"], made["audit"]["differing"], made["dry_run"]) == (1, 0, False)
    assert made["duration_ms"] >= 0
    closed = cli("topic", "list")
    assert closed.status == 1
    assert made["identity"] in closed.err
    assert "txnframework copy --help" in closed.err
    assert "complete already" in cli("copy", "--to", "new.toml", "--yes").out
    assert "No differences." in cli("audit", "--to", "new.toml").out
    assert cli("topic", "produce", "orders", "two", "--config", "new.toml").status == 0
    differs = cli("audit", "--to", "new.toml")
    assert differs.status == 1
    assert "Differences:" in differs.out
    assert json.loads(cli("audit", "--to", "new.toml", "--output", "json").out)["differing"] > 0
    assert made["identity"] in cli("copy", "--reopen", "--yes").out
    assert cli("topic", "consume", "orders").out.split() == ["one"]
