"""What is wrong in a scenario, and shows only where there are plugins that simulate it."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnframework.cli import main

MIXTURE = """
workload = "mixture"

[options]
topics = { a = 1 }
actions = { send = 1 }
subscriptions = [{ topic = "a", name = "b", type = "share" }]
"""


def test_a_subscription_of_a_type_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before anything runs, by its place in the file."""
    file = tmp_path / "mine.toml"
    file.write_text(MIXTURE, encoding="utf-8")
    assert main(["simulate", "--scenario", str(file)]) == 2
    assert "mine.toml: options.subscriptions[0].type: no dispatcher named 'share'" in capsys.readouterr().err
