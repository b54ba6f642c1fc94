"""The tool that counts the path of a message prints the same result in every run and process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNTING = Path(__file__).parents[2] / "bench" / "message_path.py"


def counted(seed: str) -> dict[str, dict[str, int]]:
    """Return its output in a process whose sets have another order."""
    done = subprocess.run(
        [sys.executable, str(COUNTING), "--output", "json"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_it_counts_the_same_each_time() -> None:
    """The result does not depend on time, set order or process."""
    found = counted("0")
    assert list(found) == ["send(txn)", "commit", "receive"]
    for figures in found.values():
        assert 1 < figures["modules"] <= figures["changes"] < figures["calls"]
        assert 0 < figures["own"] <= figures["calls"]
    assert counted("1") == found
