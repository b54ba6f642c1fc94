"""
Servers that a command starts for itself, uses and removes: a name that stands where a store's URL may stand.

    with embedded("embedded-postgresql") as url:
        ...  # postgresql://..., until the block ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from txnframework.errors import InvalidInput

PREFIX = "embedded-"


class UnusableServer(InvalidInput):
    """The server that ``name`` stands for cannot be started."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(f"{name}: {reason}")


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server that was started: ``url`` is that of an empty store in it.

    ``kill`` ends it at once, with whatever it does; ``start`` goes on with the data that it has. Both block.
    """

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Start the server of this name; it goes, with its data, when the block ends."""
    if name not in EMBEDDED:
        raise UnusableServer(name, f"there is no such server to start; there are {', '.join(sorted(EMBEDDED))}")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(EMBEDDED[name]())
        except (RuntimeError, OSError) as error:
            raise UnusableServer(name, str(error)) from error
        yield server


@contextmanager
def embedded(name: str) -> Iterator[str]:
    """Start the server of this name; give the URL of an empty store in it, which goes when the block ends."""
    with running(name) as server:
        yield server.url


@contextmanager
def started(*urls: str | None) -> Iterator[tuple[str | None, ...]]:
    """Start what is named among these, each server once; give URLs, and what is no such name as it came."""
    with started_servers(*urls) as (found, _):
        yield found


@contextmanager
def started_servers(*urls: str | None) -> Iterator[tuple[tuple[str | None, ...], dict[str, Server]]]:
    """Do the same, and give the servers as well, by their names."""
    with ExitStack() as stack:
        named = sorted({url for url in urls if url is not None and url.startswith(PREFIX)})
        found = {name: stack.enter_context(running(name)) for name in named}
        yield tuple(found[url].url if url in found else url for url in urls), found


@contextmanager
def _postgresql() -> Iterator[Server]:
    from txnframework.testing.servers.postgresql import PostgresServer

    with PostgresServer() as server:
        yield Server(server.create_database("txnframework"), server.kill, server.start)


@contextmanager
def _zookeeper() -> Iterator[Server]:
    from txnframework.testing.servers.zookeeper import ZooKeeper

    with TemporaryDirectory(prefix="txnframework-zookeeper-") as directory, ZooKeeper(Path(directory)) as zookeeper:
        yield Server(f"zookeeper://{zookeeper.hosts}/txnframework", zookeeper.stop, zookeeper.start)


EMBEDDED: Mapping[str, Callable[[], AbstractContextManager[Server]]] = MappingProxyType(
    {f"{PREFIX}postgresql": _postgresql, f"{PREFIX}zookeeper": _zookeeper}
)
"""What starts the server of each name."""
