"""Names in arguments cannot steer the terminal on which the commands print errors about them."""

from __future__ import annotations

import pytest

from txnframework.cli import main

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x9b31m\rover\u202etxt\u2066"


@pytest.mark.parametrize("typed", [("simulate", "--scenario", EVIL), ("torture", "--check", EVIL)])
def test_control_characters_are_written_out(typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows what was typed, and none of its sequences reaches the terminal."""
    assert main(typed) == 2
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e", "\u2066"} & {*said.out, *said.err}
    assert r"\x1b]0;OWNED" in said.err
