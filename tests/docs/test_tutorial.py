"""The tutorial is true: its commands are run one after the other, and print what the page shows."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/tutorial/*.md"))
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """Every console block of a page is run, in the order of the page; ``...`` stands for anything."""
    for example in ROOT.glob("docs/examples/*.py"):
        (tmp_path / example.name).write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    for command, shown in commands(page.read_text(encoding="utf-8")):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert doctest.OutputChecker().check_output(shown, done.stdout, SHOWN), f"{command}\n{done.stdout}"


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of the console blocks, each with the output that is shown for it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for step in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, shown = step.partition("\n")
            found.append((command, shown))
    return found
