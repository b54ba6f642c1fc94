"""The page that says what to do after a failure knows every failure."""

from __future__ import annotations

import re
from pathlib import Path

import txnframework_spark
from txnframework import errors as core

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "recover.md"
BEFORE_IT_RUNS = {"InvalidOption", "UnknownOption", "JavaUnusable"}
"""Said before anything was begun, by sentences that tell what to type."""


def test_every_failure_of_a_pipeline_is_told() -> None:
    told = PAGE.read_text(encoding="utf-8")
    public = (getattr(txnframework_spark, name) for name in txnframework_spark.__all__)
    raised = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Exception)}
    assert {
        name for name in raised - BEFORE_IT_RUNS if f"| `{name}`" not in told and f", `{name}`" not in told
    } == set()


def test_what_is_told_can_be_raised() -> None:
    first_cells = re.findall(r"^\| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for cell in first_cells for name in re.findall(r"`([A-Z]\w+)`", cell)}
    assert "Fenced" in names
    assert {name for name in names if not hasattr(core, name) and not hasattr(txnframework_spark, name)} == set()
