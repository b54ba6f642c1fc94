"""Which configuration a command uses: ``--config FILE``, behind the program or behind the command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_FILE = "txnframework.toml"
CONFIG_VARIABLE = "TXNFRAMEWORK_CONFIG"


def config_option(command: F) -> F:
    """Add ``--config FILE`` to a command."""
    return click.option(
        "--config",
        "config",
        type=click.Path(path_type=Path),
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help=f"The configuration.  [default: {CONFIG_FILE} if it is there, otherwise the embedded database]",
    )(command)


def config_option_for_all() -> click.Option:
    """Return ``--config FILE`` for the program itself: the same as naming it behind the command, whose ever that is."""
    return click.Option(
        ["--config"],
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_name_for_all,
        help="The configuration; may as well be named behind the command.",
    )


def _name_for_all(ctx: click.Context, _: click.Parameter, file: str | None) -> None:
    """Let commands, those of plugins too, find the file where they look for it, until this one is done."""
    if file is None or ctx.resilient_parsing:
        return
    before = os.environ.get(CONFIG_VARIABLE)
    os.environ[CONFIG_VARIABLE] = file

    @ctx.call_on_close
    def forget() -> None:
        if before is None:
            del os.environ[CONFIG_VARIABLE]
        else:
            os.environ[CONFIG_VARIABLE] = before
