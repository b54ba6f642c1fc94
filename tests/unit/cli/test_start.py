from __future__ import annotations

import subprocess
import sys

import pytest

from txnframework.cli._app import OWN

HEAVY = (
    "sqlalchemy",
    "kazoo",
    "rich",
    "pyspark",
    "txnframework.broker",
    "txnframework.client",
    "txnframework.testing",
    "txnframework_sql._metadata_store",
    "txnframework_zookeeper._metadata_store",
    "txnframework_metadata.buffer",
    "txnframework_legacy.buffer",
)
"""Packages for commands that open stores; importing them takes much longer than all the rest."""

LEAVE_WORD = f"""
import sys
from txnframework.cli import main
status = main(sys.argv[1:])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_nothing_is_imported_that_the_command_does_not_need(arguments: tuple[str, ...]) -> None:
    """The version and the help need no imports of stores."""
    command = [sys.executable, "-c", LEAVE_WORD, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_what_is_listed_is_what_the_commands_say() -> None:
    """The list of commands is built without importing them, and agrees with their help."""
    assert {one.name: one.help for one in OWN} == {one.name: one.load().get_short_help_str(80) for one in OWN}
    assert [one.name for one in OWN] == sorted(one.load().name or "" for one in OWN)
