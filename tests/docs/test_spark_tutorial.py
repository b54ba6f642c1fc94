"""The tutorial of Spark pipelines is true; it runs where Spark is installed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "exactly-once-pipeline.md"
EXAMPLE = ROOT / "docs" / "examples" / "pipeline.toml"


def test_commands_print_what_the_page_shows(
    tmp_path: Path, run_page: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page: a pipeline is checked, run, killed in mid-write, and run again."""
    pytest.importorskip("txnframework_spark")
    # None of its JVMs lives long enough for code that is compiled well.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    run_page(PAGE, {}, shows_all=True)


def test_the_page_shows_what_stands_in_the_file() -> None:
    """Word for word."""
    shown = re.findall(
        r"<!-- docs/examples/pipeline.toml -->\n```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S
    )
    assert len(shown) == 2
    assert all(part in EXAMPLE.read_text(encoding="utf-8") for part in shown)
