"""Opening a client for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from txnframework.cli._config_option import CONFIG_FILE
from txnframework.cli._loaded import Loaded
from txnframework.cli._waiting import told_if_slow, waiting_for_stores
from txnframework.client import Client, open
from txnframework.config import Config, check_config, load_config
from txnframework.environment import SystemEnvironment

R = TypeVar("R")


def settings_of(loaded: Loaded, config: Path | None) -> Config:
    """Return the configuration that a command was given, or finds, checked against what is installed."""
    if loaded.errors:
        raise loaded.errors[0]
    source = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)
    settings = load_config(source)
    check_config(settings, loaded.registry, None if source is None else str(source))
    return settings


def with_client(
    loaded: Loaded, config: Path | None, work: Callable[[Client], Awaitable[R]], *, stays: bool = False
) -> R:
    """
    Open a client, let ``work`` use it, close it; return what ``work`` returned.

    A command is gone in a moment, so it leaves sweeping to the processes that stay. One that ``stays`` sweeps: it may
    wait for what a dead process left open.
    """
    settings = settings_of(loaded, config)
    sweeps = settings.transactions.sweep and stays
    quiet = msgspec.structs.replace(settings, transactions=msgspec.structs.replace(settings.transactions, sweep=sweeps))

    async def run() -> R:
        async with AsyncExitStack() as opened:
            async with told_if_slow(waiting_for_stores(settings, loaded.registry), SystemEnvironment()):
                client = await opened.enter_async_context(open(quiet, registry=loaded.registry))
            return await work(client)

    return asyncio.run(run())
