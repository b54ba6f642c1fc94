"""
Servers that a command starts for itself, uses and removes: a name that stands where a store's URL may stand.

    with embedded("embedded-postgresql") as url:
        ...  # postgresql://..., until the block ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


@contextmanager
def embedded(name: str) -> Iterator[str]:
    """Start the server of this name; give the URL of an empty store in it, which goes when the block ends."""
    if name not in EMBEDDED:
        raise UnusableServer(name, f"there is no such server to start; there are {', '.join(sorted(EMBEDDED))}")
    with ExitStack() as stack:
        try:
            url = stack.enter_context(EMBEDDED[name]())
        except (RuntimeError, OSError) as error:
            raise UnusableServer(name, str(error)) from error
        yield url


@contextmanager
def started(*urls: str | None) -> Iterator[tuple[str | None, ...]]:
    """Start what is named among these, each server once; give URLs, and what is no such name as it came."""
    with ExitStack() as stack:
        named = sorted({url for url in urls if url is not None and url.startswith(PREFIX)})
        found = {name: stack.enter_context(embedded(name)) for name in named}
        yield tuple(found.get(url, url) if url is not None else None for url in urls)


@contextmanager
def _postgresql() -> Iterator[str]:
    from txnframework.testing.servers.postgresql import PostgresServer

    with PostgresServer() as server:
        yield server.create_database("txnframework")


@contextmanager
def _zookeeper() -> Iterator[str]:
    from txnframework.testing.servers.zookeeper import ZooKeeper

    with TemporaryDirectory(prefix="txnframework-zookeeper-") as directory, ZooKeeper(Path(directory)) as zookeeper:
        yield f"zookeeper://{zookeeper.hosts}/txnframework"


EMBEDDED: Mapping[str, Callable[[], AbstractContextManager[str]]] = MappingProxyType(
    {f"{PREFIX}postgresql": _postgresql, f"{PREFIX}zookeeper": _zookeeper}
)
"""What starts the server of each name."""
