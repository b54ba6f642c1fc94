"""What mypy with mypy-zope refuses of an implementer; this also guards upgrades of the pair."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "cases" / "implementers.py"


def test_bad_implementers_are_refused_and_the_good_one_is_not() -> None:
    """Exactly the marked lines are refused, each for the reason that its mark names."""
    expected = {
        number: line.partition("# refused: ")[2]
        for number, line in enumerate(CASES.read_text(encoding="utf-8").splitlines(), 1)
        if "# refused: " in line
    }
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(CASES)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found: dict[int, str] = {}
    for line in result.stdout.splitlines():
        if match := re.search(r"implementers\.py:(\d+): error: (.*)", line):
            found[int(match[1])] = found.get(int(match[1]), "") + match[2]
    assert found.keys() == expected.keys(), result.stdout + result.stderr
    for number, text in expected.items():
        assert text in found[number], (number, found[number])
