"""Makes the engine of these tests importable, and says at the end how many crash points were explored."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

_EXPLORED = pytest.StashKey["Explored"]()


class Explored:
    """How many crash points were explored, by scenario."""

    def __init__(self) -> None:
        self.points = 0
        self.lines: dict[str, list[str]] = defaultdict(list)

    def add(self, scenario: type, atomic: bool, text: str, points: int) -> None:
        self.points += points
        self.lines[f"{scenario.__name__}{'' if atomic else ', no atomic batches'}"].append(text)


@pytest.fixture
def explored(pytestconfig: pytest.Config) -> Explored:
    return pytestconfig.stash.setdefault(_EXPLORED, Explored())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    explored = config.stash.get(_EXPLORED, None)
    if explored is not None:
        terminalreporter.section(f"{explored.points} crash points explored")
        for scenario, texts in sorted(explored.lines.items()):
            terminalreporter.write_line(f"{scenario}: {', '.join(texts)}")
