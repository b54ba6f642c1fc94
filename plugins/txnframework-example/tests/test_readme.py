"""What the README shows is what a reader gets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[1]


def test_the_certificate_is_that_of_a_run() -> None:
    """Word for word, from the name of the suite on."""
    (shown,) = re.findall(r"```text\n(.*?)```", (PLUGIN / "README.md").read_text(encoding="utf-8"), re.S)
    tests = "tests/test_conformance.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        tests,
        "-k",
        "test_get_absent",
    ]
    done = subprocess.run(command, cwd=PLUGIN, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    assert shown in done.stdout
