"""Questions before what cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from txnframework.cli._boundary import STATUS_FAILED
from txnframework.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(command: F) -> F:
    """Add ``--yes`` to a command."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(command)


def ask(question: str) -> None:
    """
    Return if somebody agrees; otherwise end the command, with nothing changed.

    :raises InvalidInput: nobody is there who could answer.
    """
    try:
        agreed = click.confirm(question)
    except click.Abort as error:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        click.echo()
        raise InvalidInput("nobody is there to answer: add --yes") from error
    if not agreed:
        click.echo("Nothing was changed.")
        click.get_current_context().exit(STATUS_FAILED)
