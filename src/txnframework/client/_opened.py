"""Opening a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework.broker import open_host
from txnframework.client._client import Client
from txnframework.client._closing import close_after
from txnframework.config import Config, check_config, load_config
from txnframework.environment import Environment
from txnframework.plugin import PluginRegistry, load_plugins

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

ConfigSource = Config | Path | str | Mapping[str, object] | None


@asynccontextmanager
async def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Client]:
    """
    Open a client: ``async with txnframework.open(...) as client``.

    :param config: the path of a TOML file, a table as such a file holds, what ``load_config`` returned, or nothing
        (one SQLite database in ``./txnframework-data``).
    :param registry: the plugins to use; default: those that are installed.
    :param environment: time and randomness; default: the real ones.
    :param metrics: where to measure (``txnframework.metrics``); default: nothing is measured.
    :raises ConfigurationError: the configuration does not fit what is installed.
    :raises StoreMismatch: its two stores do not belong together.
    """
    loaded = config if isinstance(config, Config) else load_config(config)
    plugins = registry or load_plugins()
    check_config(loaded, plugins, str(config) if isinstance(config, Path | str) else None)
    host = await open_host(loaded, plugins, environment, metrics)
    try:
        yield Client(host)
    except BaseException as error:
        await close_after(error, host.close)
        raise
    await host.close()
