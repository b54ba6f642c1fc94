"""The tutorial is true: its commands are run one after the other, and print what the page shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What needs Spark is run by test_spark_tutorial.
PAGES = sorted(path for path in ROOT.glob("docs/tutorial/*.md") if path.stem != "exactly-once-pipeline")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path, run_page: Callable[..., None]) -> None:
    """Every console block of a page is run, in the order of the page; ``...`` stands for anything."""
    for example in ROOT.glob("docs/examples/*.py"):
        (tmp_path / example.name).write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    run_page(page, {}, shows_all=True)
