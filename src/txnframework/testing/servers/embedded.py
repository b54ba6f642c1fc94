"""
Embedded servers: a command accepts their names in place of a store's URL, starts them and removes them afterwards.

    with started(load_plugins(), "embedded-mine") as (url,):
        ...  # the URL of an empty store, until the block ends

``mine`` is the name of a server that a plugin offers; see ``txnframework.plugin.EmbeddedServer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from txnframework.errors import UnusableServer
from txnframework.plugin import PluginRegistry, Server

PREFIX = "embedded-"


@contextmanager
def running(registry: PluginRegistry, name: str) -> Iterator[Server]:
    """
    Start the embedded server ``name``; it is stopped and its data removed at the end of the block.

    :raises UnknownPlugin: no installed plugin offers it.
    :raises UnusableServer: it cannot be started.
    """
    offered = registry.embedded_server(name.removeprefix(PREFIX))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(offered.launch())
        except (RuntimeError, OSError) as error:
            raise UnusableServer(name, str(error)) from error
        yield server


@contextmanager
def started(registry: PluginRegistry, *urls: str | None) -> Iterator[tuple[str | None, ...]]:
    """Start each embedded server in ``urls`` once; yield the URLs, with each server name replaced by its URL."""
    with started_servers(registry, *urls) as (found, _):
        yield found


@contextmanager
def started_servers(
    registry: PluginRegistry, *urls: str | None
) -> Iterator[tuple[tuple[str | None, ...], dict[str, Server]]]:
    """Start them as ``started`` does; yield the URLs, and the servers by name."""
    with ExitStack() as stack:
        named = sorted({url for url in urls if url is not None and url.startswith(PREFIX)})
        found = {name: stack.enter_context(running(registry, name)) for name in named}
        yield tuple(found[url].url if url in found else url for url in urls), found
