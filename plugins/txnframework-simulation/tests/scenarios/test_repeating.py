"""What is said of a run leads back to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnframework.cli import main


def test_a_scenario_of_ones_own_is_repeated_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said to repeat the run names what was typed, not a scenario that comes with the framework."""
    file = tmp_path / "chain.toml"
    file.write_text('workload = "chain"\noperations = 5\n', encoding="utf-8")
    assert main(["simulate", "--replay", "1", "--scenario", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"Repeat it with: txnframework simulate --replay 1 --scenario {file}\n" in said


def test_a_fault_that_a_run_does_not_have_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """It would otherwise look as if that fault made no difference."""
    assert main(["simulate", "--replay", "3", "--scenario", "chain", "--only", "0,4000"]) == 2
    assert "this run has no fault 4000" in capsys.readouterr().err
