"""What somebody is told who waits for stores that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import msgspec

from txnframework.config import Config, redact_url, store_name
from txnframework.environment import Environment
from txnframework.plugin import PluginRegistry

QUIET_MS = 2_000
_PATIENCE = "connect_timeout_ms"
"""What plugins call the option that says how long they wait for a server."""


@asynccontextmanager
async def told_if_slow(sentence: str, environment: Environment) -> AsyncIterator[None]:
    """Write a sentence to standard error if what is done meanwhile takes longer than a moment."""

    async def tell() -> None:
        await environment.sleep_until(environment.now_ms() + QUIET_MS)
        click.echo(sentence, err=True)

    telling = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def waiting_for_stores(settings: Config, registry: PluginRegistry) -> str:
    """Say which stores are waited for, and where it stands for how long, as far as their plugins let that be set."""
    stores = {
        "metadata": (settings.metadata.url, registry.metadata_store(store_name(settings.metadata.url)).options),
        "ledger": (settings.ledger.url, registry.ledger_store(store_name(settings.ledger.url)).options),
    }
    urls = " and ".join(dict.fromkeys(redact_url(url) for url, _ in stores.values()))
    places = [f"[{name}.options]" for name, (_, options) in stores.items() if _PATIENCE in _fields(options)]
    how_long = f" {_PATIENCE} in {' and '.join(places)} says for how long." if places else ""
    return f"Waiting for an answer of {urls}.{how_long}"


def _fields(options: type[msgspec.Struct] | None) -> tuple[str, ...]:
    return () if options is None else options.__struct_fields__
