from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

COMMAND_SECONDS_MAX = 240
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def run_page(tmp_path: Path) -> Callable[..., None]:
    """
    Return a function that runs every console block of a page, in the order of the page.

    ``names`` are filled in first. ``shows_all``: what is shown without output prints none.
    """
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(page: Path, names: Mapping[str, str], *, shows_all: bool) -> None:
        found = commands(page.read_text(encoding="utf-8"))
        assert found
        for command, shown in found:
            for name, value in names.items():
                command = command.replace(name, value)
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_SECONDS_MAX,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if shown.strip() or shows_all:
                assert doctest.OutputChecker().check_output(shown, done.stdout, SHOWN), f"{command}\n{done.stdout}"

    return run


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of the console blocks, each with the output that is shown for it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for step in re.split(r"^ *\$ ", block, flags=re.M)[1:]:
            command, _, shown = step.partition("\n")
            found.append((command, shown))
    return found
