"""``txnframework torture`` over one SQLite file: processes that are killed and paused, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from txnframework.cli import main
from txnframework.testing.history import Drained, DrainTopic, read, write


def test_torture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is violated and the history is kept; a breach that is put into it is found when it is checked again."""
    directory = tmp_path / "run"
    typed = ["torture", "--seconds", "6", "--processes", "2", "--seed", "1", "--directory", str(directory)]
    assert main(typed) == 0, capsys.readouterr()
    said = capsys.readouterr()
    assert "was violated" in said.out
    assert "seed 1" in said.err
    outcome = json.loads((directory / "outcome.json").read_text())
    assert outcome["counts"]["kills"] + outcome["counts"]["pauses"] > 0
    assert outcome["operations"]["Begin"]["ok"] > 0

    assert main(["torture", "--check", str(directory)]) == 0
    history = read(directory / "history.jsonl")
    drain = next(call for call in history.calls() if isinstance(call.operation, DrainTopic))
    history.events[drain.ended] = replace(history.events[drain.ended], reply=Drained(()))
    write(history, directory / "history.jsonl")
    assert main(["torture", "--check", str(directory)]) == 1
    assert "violated: lost write" in capsys.readouterr().out


def test_a_directory_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is mixed with what stands there already."""
    (tmp_path / "something").touch()
    assert main(["torture", "--directory", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
