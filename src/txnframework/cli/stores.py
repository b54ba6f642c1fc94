"""Clients of the stores that a configuration names, for the commands of core and of plugins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from txnframework.cli._groups import LoadedPlugins
from txnframework.cli._options import CONFIG_FILE, ConfigPath, config_option
from txnframework.cli._suggestions import suggest_names
from txnframework.cli.background_client import OpenClient
from txnframework.client import Client, open
from txnframework.config import Config, check_config, load_config, redact_url, store_name
from txnframework.environment import Environment, SystemEnvironment
from txnframework.plugin import PluginRegistry
from txnframework.runtime.tasks import start_task

__all__ = ["ConfigPath", "LoadedPlugins", "client_opener", "config_option", "settings_of", "with_client"]

R = TypeVar("R")

NOTICE_DELAY_MS = 2_000
"""A command that takes longer than this reports its activity on standard error."""

_CONNECT_TIMEOUT = "connect_timeout_ms"
"""The option that plugins have for the time to wait for a server."""


def note_left_out(loaded: LoadedPlugins) -> None:
    """Print why plugins were left out; a command fails only if the configuration names one of them."""
    for error in loaded.errors:
        click.echo(f"Note: a plugin is left out: {error}", err=True)


def settings_of(loaded: LoadedPlugins, config: Path | None) -> Config:
    """Return the configuration of a command, checked against the installed plugins."""
    note_left_out(loaded)
    source = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)
    settings = load_config(source)
    check_config(settings, loaded.registry, None if source is None else str(source))
    return settings


def with_client(
    loaded: LoadedPlugins, config: Path | None, work: Callable[[Client], Awaitable[R]], *, stays: bool = False
) -> R:
    """
    Open a client, call ``work`` with it, close it; return the result of ``work``.

    Most commands end quickly and leave sweeping to other processes. A command that ``stays`` sweeps as well, because it
    may wait for a transaction that a dead process left open. If a topic or subscription does not exist, the error
    suggests similar names.
    """
    settings = settings_of(loaded, config)
    sweep = settings.transactions.sweep and stays
    adapted = msgspec.structs.replace(
        settings, transactions=msgspec.structs.replace(settings.transactions, sweep=sweep)
    )

    async def run() -> R:
        async with AsyncExitStack() as stack:
            async with notice_if_slow(connection_notice(settings, loaded.registry), SystemEnvironment()):
                client = await stack.enter_async_context(open(adapted, registry=loaded.registry))
            await stack.enter_async_context(suggest_names(client))
            return await work(client)

    return asyncio.run(run())


def client_opener(loaded: LoadedPlugins, config: Path | None) -> OpenClient:
    """Return what opens a client that only reads: it does no work in the background."""
    settings = settings_of(loaded, config)
    quiet = msgspec.structs.replace(settings, transactions=msgspec.structs.replace(settings.transactions, sweep=False))

    def open_client() -> AbstractAsyncContextManager[Client]:
        return open(quiet, registry=loaded.registry)

    return open_client


@asynccontextmanager
async def notice_if_slow(sentence: str, environment: Environment) -> AsyncIterator[None]:
    """Write a sentence to standard error if the block takes longer than ``NOTICE_DELAY_MS``."""

    async def write_later() -> None:
        await environment.sleep_until(environment.now_ms() + NOTICE_DELAY_MS)
        click.echo(sentence, err=True)

    writing = start_task(write_later())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def connection_notice(settings: Config, registry: PluginRegistry) -> str:
    """Return a sentence that names the stores, and the options that limit the wait where their plugins have them."""
    stores = {
        "metadata": (settings.metadata.url, registry.metadata_store(store_name(settings.metadata.url)).options),
        "ledger": (settings.ledger.url, registry.ledger_store(store_name(settings.ledger.url)).options),
    }
    urls = " and ".join(dict.fromkeys(redact_url(url) for url, _ in stores.values()))
    tables = [f"[{name}.options]" for name, (_, options) in stores.items() if _CONNECT_TIMEOUT in _fields(options)]
    limit = f" {_CONNECT_TIMEOUT} in {' and '.join(tables)} limits the wait." if tables else ""
    return f"Waiting for {urls} to answer.{limit}"


def _fields(options: type[msgspec.Struct] | None) -> tuple[str, ...]:
    return () if options is None else options.__struct_fields__
