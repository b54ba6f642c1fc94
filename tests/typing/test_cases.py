"""What mypy refuses, with mypy-zope, of the marked lines; this also guards upgrades of the pair."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_the_marked_lines_are_refused_and_no_others(cases: Path) -> None:
    """Exactly the marked lines are refused, each for the reason that its mark names."""
    expected = {
        number: line.partition("# refused: ")[2]
        for number, line in enumerate(cases.read_text(encoding="utf-8").splitlines(), 1)
        if "# refused: " in line
    }
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(cases)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found: dict[int, str] = {}
    for line in result.stdout.splitlines():
        if match := re.search(rf"{cases.name}:(\d+): error: (.*)", line):
            found[int(match[1])] = found.get(int(match[1]), "") + match[2]
    assert expected
    assert found.keys() == expected.keys(), result.stdout + result.stderr
    for number, text in expected.items():
        assert text in found[number], (number, found[number])
