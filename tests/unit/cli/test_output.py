"""Output of commands fits the available width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from txnframework.cli.output import position_of, print_records, time_of

ID = "0" * 31 + "1"
RECORDS: list[dict[str, object]] = [{"transaction": ID, "what_to_do": "wait " * 10, "ended": None}]


@pytest.mark.parametrize(("width", "below"), [(60, True), (120, False)])
def test_a_narrow_terminal_breaks_no_id(width: int, below: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that does not fit is printed as a list of names and values, without empty ones."""
    table = io.StringIO()
    print_records(RECORDS, Console(file=table, width=width, force_terminal=True))
    listed = capsys.readouterr().out
    assert ID in (listed if below else table.getvalue())
    assert (f"transaction  {ID}\n" in listed, "ended" in listed) == (below, False)


def test_a_pipe_gets_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a pipe is not wrapped: programs expect one line for each row."""
    piped = io.StringIO()
    command = f"run 'txnframework transaction abort {ID}' " * 5
    print_records([{**RECORDS[0], "remedy": command.strip()}], Console(file=piped, width=80))
    assert any(ID in line and "wait" in line and command in line for line in piped.getvalue().splitlines())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "shown"), [("0:-1", "start"), ("7:-1", "before 7:0"), ("7:0", "7:0"), ("7:0:3", "7:0:3")]
)
def test_positions_before_an_entry(text: str, shown: str) -> None:
    """A position that is not an entry is shown in words."""
    assert position_of(text) == shown


@pytest.mark.parametrize("at_ms", [2**62, -1, 253_402_300_800_000])
def test_time_that_no_calendar_has(at_ms: int) -> None:
    """An invalid time of a sender is shown as its number."""
    assert time_of(at_ms) == f"{at_ms} ms"
