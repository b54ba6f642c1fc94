"""The documentation is true: its example runs and stands in the README as it is, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import txnframework.interfaces

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "quickstart.py"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])


def test_the_example_runs_again_and_again(tmp_path: Path) -> None:
    """It prints what the README says, and one more invoice when it is run once more on the same data."""
    for number in (1, 2):
        result = subprocess.run(
            [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == ["invoice for three apples"] * number
    assert (tmp_path / "txnframework-data" / "txn.db").exists()


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = re.search(
        r"<!-- docs/examples/quickstart\.py -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert shown is not None
    assert shown[1] == EXAMPLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_role_stands_in_the_reference() -> None:
    """A role or promise that is added is documented, from its docstring."""
    page = (ROOT / "docs" / "reference" / "interfaces.md").read_text(encoding="utf-8")
    shown = re.findall(r"autointerface:: txnframework\.interfaces\.(\w+)", page)
    assert sorted(shown) == sorted(txnframework.interfaces.__all__)


def test_every_page_can_be_reached() -> None:
    """The index names every page, so that a reader finds it from there."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/*/*.md"):
        assert str(page.relative_to(ROOT / "docs").with_suffix("")) in index, page
