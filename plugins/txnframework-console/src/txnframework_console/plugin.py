"""Plugin hook: the commands ``txnframework console`` and ``txnframework top``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the commands; their dependencies (click, jinja2, rich, starlette, uvicorn) are imported when used."""
    return (
        Command("console", "Serve a web page that shows topics, subscriptions and transactions.", _console),
        Command("top", "Show topics, transactions and subscriptions in the terminal, live.", _top),
    )


def _console() -> click.Command:
    from txnframework_console.command import console

    return console


def _top() -> click.Command:
    from txnframework_console.command import top

    return top
