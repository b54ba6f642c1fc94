"""Options, arguments and questions that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from txnframework.cli._statuses import STATUS_FAILED
from txnframework.errors import InvalidInput
from txnframework.urls import check_no_url

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_FILE = "txnframework.toml"
CONFIG_VARIABLE = "TXNFRAMEWORK_CONFIG"


class ConfigPath(click.Path):
    """The path of a configuration file; the URL of a store is refused, before a path loses its slashes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or raise ConfigurationError for a URL."""
        check_no_url(os.fspath(value))
        return super().convert(value, param, ctx)


def config_option(command: F) -> F:
    """Add ``--config FILE`` to a command."""
    return click.option(
        "--config",
        "config",
        type=ConfigPath(),
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help=f"Configuration file.  [default: {CONFIG_FILE} if it exists, otherwise the embedded database]",
    )(command)


def global_config_option() -> click.Option:
    """Return ``--config FILE`` for the program itself; it has the same effect as ``--config`` of any command."""
    return click.Option(
        ["--config"],
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_export_config,
        help="Configuration file; every command has this option as well.",
    )


def _export_config(ctx: click.Context, _: click.Parameter, file: str | None) -> None:
    """Name the file in the environment, where all commands look for it, until this run ends."""
    if file is None or ctx.resilient_parsing:
        return
    before = os.environ.get(CONFIG_VARIABLE)
    os.environ[CONFIG_VARIABLE] = file

    @ctx.call_on_close
    def restore() -> None:
        if before is None:
            del os.environ[CONFIG_VARIABLE]
        else:
            os.environ[CONFIG_VARIABLE] = before


def yes_option(command: F) -> F:
    """Add ``--yes`` to a command."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def require_answer(output: str, yes: bool) -> None:
    """
    Refuse to ask a question in the middle of JSON.

    :raises InvalidInput: the output is JSON and ``--yes`` is missing.
    """
    if output == "json" and not yes:
        raise InvalidInput("--output json cannot ask for confirmation: add --yes")


def confirm(question: str) -> None:
    """
    Ask before an irreversible change; end the command, with nothing changed, unless the answer is yes.

    :raises InvalidInput: standard input is no terminal and holds no answer.
    """
    try:
        agreed = click.confirm(question)
    except click.Abort as error:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        click.echo()
        raise InvalidInput("cannot ask for confirmation without a terminal: add --yes") from error
    if not agreed:
        click.echo("Nothing was changed.")
        click.get_current_context().exit(STATUS_FAILED)


def parse_time_ms(text: str) -> int:
    """Return an ISO 8601 time in ms since 1970; a time without a zone is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"invalid time {text!r}: write a time such as 2026-01-31T12:00:00Z") from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
