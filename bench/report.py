"""The figures as a table for people and as JSON to be stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from measurement import Found
from rich.table import Table

Figures = Mapping[str, Sequence[Found]]
"""The results of each figure, by its name."""


def document(found: Figures, facts: Mapping[str, object]) -> str:
    """Return the figures as JSON, after ``facts`` about the method and the machine."""
    figures = [
        {"figure": name, **asdict(one), "target": one.target and str(one.target), "median": one.ratio, "met": one.met}
        for name, several in found.items()
        for one in several
    ]
    measured = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"measured": measured, **facts, "figures": figures}, indent=2, ensure_ascii=False)


def table(found: Figures) -> Table:
    """Return the ratios and their targets."""
    shown = Table("figure", "ratio", "lowest", "highest", "target", "", caption="medians over the rounds")
    for one in (one for several in found.values() for one in several):
        verdict = {None: "", True: "[green]met", False: "[red]missed"}[one.met]
        numbers = (f"{number:.2f}" for number in (one.ratio, min(one.rounds), max(one.rounds)))
        shown.add_row(one.what, *numbers, "" if one.target is None else str(one.target), verdict)
    return shown
