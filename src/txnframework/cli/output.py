"""Output of commands, also of plugins: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from txnframework.cli._safe_stream import escape_controls
from txnframework.cli.terminal import console
from txnframework.model.positions import EARLIEST, TIME_MS_MAX

__all__ = [
    "duration_of",
    "output_option",
    "position_of",
    "print_change",
    "print_facts",
    "print_json",
    "print_json_line",
    "print_records",
    "print_table",
    "time_of",
]

F = TypeVar("F", bound=Callable[..., Any])

TABLE_WIDTH_MAX = 10_000
"""The width that a table is measured with."""


def output_option(command: F) -> F:
    """Add ``--output table|json`` to a command."""
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format: a table for people, or JSON for programs.",
    )(command)


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(_json(value, indent=2))


def print_change(output: str, sentence: str, facts: Mapping[str, object]) -> None:
    """Print what a command has changed: a sentence for people, or (``output`` is json) the facts."""
    if output == "json":
        print_json(facts)
    else:
        click.echo(sentence)


def print_json_line(value: object) -> None:
    """Print a JSON document on one line."""
    click.echo(_json(value))


def _json(value: object, indent: int | None = None) -> str:
    """Return JSON in ASCII without control characters, so that escaping of the output does not change it."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table; numbers are right-aligned, None is an empty cell."""
    to, table = console(), _table(titles, rows, title)
    _widen(to, table)
    to.print(table)


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    cells = [["" if one is None else one for one in row] for row in rows]
    shown = None if title is None else escape(escape_controls(title))
    table = Table(box=SIMPLE_HEAD, title=shown, title_justify="left")
    for index, name in enumerate(titles):
        numbers = bool(cells) and all(isinstance(row[index], int) or row[index] == "" for row in cells)
        table.add_column(name, overflow="fold", justify="right" if numbers else "left")
    for row in cells:
        table.add_row(*(escape(escape_controls(str(one))) for one in row))
    return table


def print_records(records: Sequence[Mapping[str, object]], to: Console | None = None) -> None:
    """
    Print one or more documents with the same names as a table.

    On a terminal that is too narrow, print each document in two columns instead, so that no id is folded. In a file or
    pipe, a line is as long as it must be.
    """
    chosen = to or console()
    titles = tuple(name.replace("_", " ") for name in records[0])
    rows = [[_cell(value) for value in one.values()] for one in records]
    table = _table(titles, rows)
    _widen(chosen, table)
    if _width_of(chosen, table) <= chosen.width:
        chosen.print(table)
        return
    for row in rows:
        click.echo()
        print_facts({title: None if value == "" else value for title, value in zip(titles, row, strict=True)})


def _width_of(to: Console, table: Table) -> int:
    """Return the width at which no cell of the table is folded."""
    return to.measure(table, options=to.options.update(max_width=TABLE_WIDTH_MAX)).maximum


def _widen(to: Console, table: Table) -> None:
    """Make a console as wide as the table needs, unless it is a terminal."""
    if not to.is_terminal:
        to.width = max(to.width, _width_of(to, table))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values in two columns, without those that are None."""
    known = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        click.echo(f"{name:<{width}}  {value}")


def position_of(text: str) -> str:
    """Return a position as people read it: 'start', or 'before L:0' where no entry of ledger L is included."""
    if text == str(EARLIEST):
        return "start"
    ledger, _, entry = text.partition(":")
    return f"before {ledger}:0" if entry == "-1" else text


def time_of(at_ms: int | None) -> str | None:
    """Return a time in ISO 8601 and UTC; one outside the calendar as its number of milliseconds."""
    if at_ms is None:
        return None
    if not 0 <= at_ms <= TIME_MS_MAX:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def duration_of(ms: int) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    for name, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * size_ms:
            return f"{ms // size_ms} {name}"
    return f"{ms} ms"


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else value
