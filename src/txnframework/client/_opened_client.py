"""The way to open a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from txnframework.broker import open_host
from txnframework.client._base import close_after
from txnframework.client._client import Client
from txnframework.config import Config, check_config, load_config
from txnframework.environment import Environment
from txnframework.plugin import PluginRegistry, load_plugins

if TYPE_CHECKING:
    from txnframework.instruments import Instruments

ConfigSource = Config | Path | str | Mapping[str, object] | None

NOT_OPENED = "a client is opened by 'async with txnframework.open(...) as client'"


def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    metrics: Instruments | None = None,
) -> AbstractAsyncContextManager[Client, None]:
    """
    Open a client: ``async with txnframework.open(...) as client``.

    :param config: the path of a TOML file, a mapping with the contents of such a file, or a result of ``load_config``.
        Default: one SQLite database in ``./txnframework-data``.
    :param registry: the plugins to use; default: the installed plugins.
    :param environment: time and randomness; default: the real ones.
    :param metrics: where to record metrics (``txnframework.metrics``); default: no metrics.
    :raises ConfigurationError: the configuration is invalid for the installed plugins.
    :raises StoreMismatch: the metadata store and the ledger store do not belong together.
    """
    return ClientOpening(_opened(config, registry, environment, metrics))


class ClientOpening(AbstractAsyncContextManager[Client, None]):
    """A client that ``async with`` opens; any other use raises an error that says so."""

    def __init__(self, opened: AbstractAsyncContextManager[Client]) -> None:
        self._opened = opened

    async def __aenter__(self) -> Client:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report the wrong use

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{NOT_OPENED}; 'with' takes txnframework.blocking.open(...)")

        def __exit__(self, *_: object) -> None:
            """Exist, so that ``with`` calls ``__enter__``."""

        def __await__(self) -> NoReturn:
            raise TypeError(f"{NOT_OPENED}, not 'await'")

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{NOT_OPENED}, and the client, not this, has {name!r}")


@asynccontextmanager
async def _opened(
    config: ConfigSource, registry: PluginRegistry | None, environment: Environment | None, metrics: Instruments | None
) -> AsyncIterator[Client]:
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
