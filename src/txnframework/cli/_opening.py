"""Opening a client for one command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from txnframework.cli._loaded import Loaded
from txnframework.cli._waiting import told_if_slow, waiting_for_stores
from txnframework.client import Client, open
from txnframework.config import Config, check_config, load_config
from txnframework.environment import SystemEnvironment

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

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


def settings_of(loaded: Loaded, config: Path | None) -> Config:
    """Return the configuration that a command was given, or finds, checked against what is installed."""
    if loaded.errors:
        raise loaded.errors[0]
    source = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)
    settings = load_config(source)
    check_config(settings, loaded.registry, None if source is None else str(source))
    return settings


def with_client(loaded: Loaded, config: Path | None, work: Callable[[Client], Awaitable[R]]) -> R:
    """
    Open a client, let ``work`` use it, close it; return what ``work`` returned.

    A command is gone in a moment, so it leaves sweeping to the processes that stay.
    """
    settings = settings_of(loaded, config)
    quiet = msgspec.structs.replace(settings, transactions=msgspec.structs.replace(settings.transactions, sweep=False))

    async def run() -> R:
        async with AsyncExitStack() as opened:
            async with told_if_slow(waiting_for_stores(settings, loaded.registry), SystemEnvironment()):
                client = await opened.enter_async_context(open(quiet, registry=loaded.registry))
            return await work(client)

    return asyncio.run(run())
