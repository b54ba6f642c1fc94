"""The name of a process contains that of its program."""

from __future__ import annotations

import os
import socket

import pytest

from txnframework.config import ClientSection, load_config
from txnframework.environment import SystemEnvironment, program_name
from txnframework.errors import ConfigurationError


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/srv/app/billing.py"], "billing"),
        (["/usr/lib/python3/site-packages/billing/__main__.py"], "billing"),
        (["C my program.py"], "C-my-program"),
        (["/bin/a@b\x1b[2J"], "a-b[2J"),
        (["-c"], "c"),
        ([""], "python"),
        ([], "python"),
        (["x" * 200], "x" * 64),
    ],
)
def test_name_of_the_program(arguments: list[str], name: str) -> None:
    """The file's name, without what separates the parts of a process's name or steers a terminal."""
    assert program_name(arguments) == name
    assert load_config({"client": {"name": name}}).client == ClientSection(name=name)


def test_name_of_a_process() -> None:
    """The configured name, then the host and the process id."""
    assert SystemEnvironment().process_name("billing") == f"billing@{socket.gethostname()[:64]}:{os.getpid()}"


@pytest.mark.parametrize("name", ["a b", "a@b", "a/b", "a\n", "x" * 65, "\x1b[2J"])
def test_names_that_are_refused(name: str) -> None:
    """Separators of process names and control characters are refused."""
    with pytest.raises(ConfigurationError, match=r"client\.name"):
        load_config({"client": {"name": name}})
