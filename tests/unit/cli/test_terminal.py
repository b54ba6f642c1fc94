"""How control characters of data are printed on a terminal."""

from __future__ import annotations

import ast
import io
import logging
import sys
from pathlib import Path

import click
import pytest
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress, TextColumn
from rich.table import Table

from txnframework.cli._safe_stream import SafeStream, escape_controls, safe_output
from txnframework.cli.terminal import SafeConsole

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x9b31m\rover\u202e\u2066"
SOURCES = [
    path
    for root in (Path(__file__).parents[3] / "src", Path(__file__).parents[3] / "plugins")
    for path in root.rglob("*.py")
    if "tests" not in path.parts
]


def test_written_out() -> None:
    """Newlines, tabs and all scripts remain."""
    assert escape_controls("a\x1b[2J\x9b\u202e\ud800\r\x7f") == r"a\x1b[2J\x9b\u202e\ud800\x0d\x7f"
    for kept in ("one\ntwo\t3", "äß漢字😀\u200d", ""):
        assert escape_controls(kept) == kept


def test_everything_printed_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """Output of click, print, unconfigured logging and warnings is filtered."""
    with safe_output():
        click.echo(EVIL)
        click.echo(EVIL, err=True)
        click.secho(EVIL, fg="red")
        sys.stdout.write(f"{EVIL}\n")
        logging.getLogger("txnframework.hostile").warning("%s", EVIL)
        click.UsageError(EVIL).show()
    out, err = capsys.readouterr()
    assert out.count(r"\x1b]0;OWNED\x07") == 3
    assert err.count(r"\x1b]0;OWNED\x07") == 2
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err


def test_no_way_around(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no buffer to bypass the filter, and control characters in bytes are escaped, too."""
    printed = io.StringIO()
    stream = SafeStream(printed)
    assert not hasattr(stream, "buffer")
    stream.write(b"a\x1b")
    assert printed.getvalue() == "a\\x1b"


def test_a_console_writes_its_own_sequences_only() -> None:
    """Colours and cursor moves of rich pass; sequences in a table, title, status or progress bar are escaped."""
    printed = io.StringIO()
    console = SafeConsole(file=printed, force_terminal=True, width=200, color_system="standard")
    table = Table(title=escape(EVIL))
    table.add_column(EVIL)
    table.add_row(escape(EVIL))
    console.print(table)
    console.print(f"[red]{escape(EVIL)}[/red]")
    with console.status(escape(EVIL)):
        pass
    with Progress(TextColumn("{task.description}"), console=console) as progress:
        progress.add_task(escape(EVIL), total=1)
    with Live(escape(EVIL), console=console):
        pass
    text = printed.getvalue()
    assert "\x1b[31m" in text, "the console has its own colours"
    for sequence in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07"):
        assert sequence not in text
    assert text.count(r"\x1b]0;OWNED") >= 5


FORBIDDEN_CALLS = {"Console", "get_console", "get_text_stream", "get_binary_stream", "echo_via_pager"}


def test_nobody_makes_a_console_of_their_own() -> None:
    """Only ``terminal.console`` creates consoles; others would print data unfiltered."""
    found = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if path.name == "terminal.py" or not any(name in text for name in FORBIDDEN_CALLS):
            continue
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        found += [f"{path}:{one.lineno}" for one in calls if _name_of(one) in FORBIDDEN_CALLS]
    assert len(SOURCES) > 500
    assert found == [], "these print past txnframework.cli.terminal"


def _name_of(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
