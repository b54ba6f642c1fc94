"""``txnframework torture`` over one SQLite file: processes that are killed and paused, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from txnframework.cli import main
from txnframework_simulation.history import Drained, DrainTopic, operations, read, write

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "torture.md"


def test_torture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is violated and the history is kept; a breach that is put into it is found when it is checked again."""
    directory = tmp_path / "run"
    typed = ["torture", "--seconds", "6", "--processes", "2", "--seed", "1", "--directory", str(directory)]
    assert main(typed) == 0, capsys.readouterr()
    said = capsys.readouterr()
    assert "was violated" in said.out
    assert "seed 1" in said.err
    result = json.loads((directory / "result.json").read_text())
    assert result["counts"]["kills"] + result["counts"]["pauses"] > 0
    assert result["operations"]["Begin"]["ok"] > 0
    assert result["operations"]["DrainRows"]["ok"] == 1

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--check", "."), "has no history.jsonl"),
        (("--metadata", "memory:"), "--metadata memory:: torture runs several processes"),
        (("--ledger", "memory:"), "--ledger memory:: torture runs several processes"),
    ],
)
def test_what_torture_cannot_use_is_refused(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A directory without a history, a store that one process sees: one sentence, before anything is started."""
    monkeypatch.chdir(tmp_path)
    assert main(["torture", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_each_operation_of_the_table_is_explained() -> None:
    """Each operation that the table at the end may name has its place on the page about torture."""
    page = PAGE.read_text(encoding="utf-8")
    kinds = [
        one for one in vars(operations).values() if isinstance(one, type) and one.__module__ == operations.__name__
    ]
    assert kinds
    missing = [
        kind.__name__ for kind in kinds if not kind.__name__.startswith("_") and f"`{kind.__name__}`" not in page
    ]
    assert not missing
