"""Makes the engine of these tests importable, and says at the end how many crash points were explored."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

EXPLORED = "explored"


class Explored:
    """How many crash points a test explored, kept with its report: it may have run in another process."""

    def __init__(self, keep: Callable[[str, object], None]) -> None:
        self._keep = keep

    def add(self, scenario: type, text: str, points: int) -> None:
        self._keep(EXPLORED, [scenario.__name__, text, points])


@pytest.fixture
def explored(record_property: Callable[[str, object], None]) -> Explored:
    return Explored(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    texts: dict[str, list[str]] = defaultdict(list)
    explored = 0
    for report in terminalreporter.getreports("passed"):
        for name, found in report.user_properties:
            if name == EXPLORED:
                scenario, text, points = found
                texts[scenario].append(text)
                explored += points
    if explored:
        terminalreporter.section(f"{explored} crash points explored")
        for scenario, some in sorted(texts.items()):
            terminalreporter.write_line(f"{scenario}: {', '.join(some)}")
