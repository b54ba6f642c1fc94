"""The documentation is true: its example runs and stands in the README as it is, its links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

import txnframework.interfaces

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "quickstart.py"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])


def test_the_example_runs_again_and_again(tmp_path: Path) -> None:
    """It prints what the README says, and one more invoice when it is run once more on the same data."""
    for number in (1, 2):
        assert run(tmp_path, str(EXAMPLE)).splitlines() == ["invoice for three apples"] * number
    assert (tmp_path / "txnframework-data" / "txn.db").exists()


def test_the_plugin_guide_quotes_what_is_tested() -> None:
    """What the page quotes stands word for word in the file that it names."""
    page = (ROOT / "docs" / "plugin-authors" / "writing.md").read_text(encoding="utf-8")
    quoted = re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", page, re.S)
    assert len(quoted) >= 8
    for name, text in quoted:
        assert text in (ROOT / name).read_text(encoding="utf-8"), f"{name} does not have:\n{text}"


def test_the_rules_are_broken_by_whom_the_page_says() -> None:
    """Each broken backend that the page names exists, and is tried on a test that the page names with it."""
    page = (ROOT / "docs" / "plugin-authors" / "rules.md").read_text(encoding="utf-8")
    tried = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "conformance").glob("test_*broken_*.py")
    )
    rows = re.findall(r"^\| [^|`]*(?:`\w+`[^|`]*)?\| (`[A-Z][^|]*) \| ([^|]*) \|$", page, re.M)
    assert len(rows) > 40
    for broken, noticed in rows:
        tests = re.findall(r"`(\w+)`", noticed)
        for name in re.findall(r"`(\w+)`", broken):
            assert any(f'({name}, "{test}"' in tried for test in tests), f"{name} is not tried on any of {tests}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_on_a_page_is_tested(page: Path, tmp_path: Path) -> None:
    """
    A comment before a block names the tested file that holds its lines, or the test that runs it; a block without one
    is a program of its own, and runs here.
    """
    text = page.read_text(encoding="utf-8")
    for run_by, name, block in re.findall(r"(?:<!-- (run by )?(\S+) -->\n *)?```python\n(.*?)```", text, re.S):
        if run_by:
            assert page.name in (ROOT / name).read_text(encoding="utf-8")
        elif name:
            assert lines(block) in lines((ROOT / name).read_text(encoding="utf-8")), f"{name} does not hold\n{block}"
        else:
            run(tmp_path, "-c", dedent(block))


def run(directory: Path, *arguments: str) -> str:
    """Run Python; return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(text: str) -> str:
    """Return the text without indentation, so that a part of a function can be shown."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_a_configured_client_opens_what_its_file_names(tmp_path: Path) -> None:
    (tmp_path / "txnframework.toml").write_text('[metadata]\nurl = "sqlite:///elsewhere/txn.db"\n')
    run(tmp_path, str(ROOT / "docs" / "examples" / "configured.py"))
    assert (tmp_path / "elsewhere" / "txn.db").exists()


@pytest.mark.parametrize("example", ["own_rows", "outbox"])
def test_own_rows_are_billed_once(example: str, tmp_path: Path) -> None:
    """Each run bills one order more."""
    for number in (1, 2):
        said = run(tmp_path, str(ROOT / "docs" / "examples" / f"{example}.py"))
        assert said.splitlines()[-1] == f"{number} billed"


@pytest.mark.skipif(find_spec("aiosqlite") is None, reason="the example uses aiosqlite")
def test_no_apple_is_taken_twice(tmp_path: Path) -> None:
    """Four orders run at the same time; the tests of the store show what BEGIN IMMEDIATE excludes."""
    assert run(tmp_path, str(ROOT / "docs" / "examples" / "stock.py")).splitlines()[-1] == "88 apples"


def test_a_bad_message_is_given_up(tmp_path: Path) -> None:
    said = run(tmp_path, str(ROOT / "docs" / "examples" / "dead_letters.py")).splitlines()
    assert said[-2:] == ["delivery 3 of three apples, or four", "given up after 3 deliveries"]


def test_tests_of_programs(tmp_path: Path) -> None:
    """The tests on the page about tests pass: with asyncio alone, and, where anyio is there, as coroutines."""
    names = ["test_billing.py", "test_retrying.py"] + ["test_billing_async.py"] * bool(find_spec("anyio"))
    written = 0
    for name in names:
        shutil.copy(ROOT / "docs" / "examples" / name, tmp_path)
        written += (tmp_path / name).read_text(encoding="utf-8").count("def test_")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    printed = run(tmp_path, "-m", "pytest", "-q", "-p", "no:asyncio", *names)
    assert f"\n{written} passed in " in printed


def test_typed_messages(tmp_path: Path) -> None:
    """The page of typed messages shows what its example prints."""
    page = (ROOT / "docs" / "how-to" / "typed-messages.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    assert run(tmp_path, str(ROOT / "docs" / "examples" / "typed_messages.py")) == shown


def test_a_handler_runs(tmp_path: Path) -> None:
    """Two messages are handled, and the one between them is given up."""
    said = run(tmp_path, str(ROOT / "docs" / "examples" / "handlers.py")).splitlines()
    assert said == ["bill three apples", "bill a pear"]


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
