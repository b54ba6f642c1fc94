"""
Stores on a backend: separate ones for each family and measure, so that no family reads data of another one.

The URL on the command line names where stores are created; the store at the URL itself is neither read nor written.
Stores are created beside a SQLite file, on the server of a PostgreSQL database, or below a ZooKeeper chroot.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from txnframework.config import store_name
from txnframework.plugin import PluginRegistry, Role
from txnframework_compare.errors import UnusableBackend

CreateStore = Callable[[str], str]
"""Creates a store of this name and returns its URL."""

PREFIX: Final = "txnframework_compare"


@dataclass(frozen=True, slots=True)
class StoreUrls:
    """Initially empty stores; the URLs are those of a configuration."""

    metadata: str
    ledger: str

    def config(self) -> dict[str, object]:
        """Return the configuration sections with these URLs."""
        return {"metadata": {"url": self.metadata}, "ledger": {"url": self.ledger}}


class Backend:
    """Creates stores; the context manager ``backend`` opens it, and removes the stores at its exit."""

    def __init__(self, metadata: CreateStore, ledger: CreateStore | None) -> None:
        self._metadata = metadata
        self._ledger = ledger
        self._token = secrets.token_hex(4)
        self._made = 0

    def create_stores(self) -> StoreUrls:
        """Create new, empty stores."""
        self._made += 1
        name = f"{PREFIX}_{self._token}_{self._made}"
        url = self._metadata(name)
        return StoreUrls(url, url if self._ledger is None else self._ledger(name))


@contextmanager
def backend(url: str | None, ledger: str | None, registry: PluginRegistry) -> Iterator[Backend]:
    """
    Create stores on the backend at ``url``, with messages on the backend at ``ledger``.

    Without a URL, the stores are SQLite files in a temporary directory. Messages are in such files too if the store at
    ``url`` stores none.

    :raises UnusableBackend: no stores can be created there.
    """
    with ExitStack() as stack:

        def maker(where: str) -> CreateStore:
            name = store_name(where)
            if name not in CREATORS:
                raise UnusableBackend(where, f"each family needs stores of its own; they can be created on {_known()}")
            return stack.enter_context(CREATORS[name](where))

        def own_files() -> str:
            directory = stack.enter_context(TemporaryDirectory(prefix="txnframework-compare-"))
            return f"sqlite:///{directory}/compare.db"

        chosen = url if url is not None else own_files()
        if ledger is None and store_name(chosen) not in registry.names(Role.LEDGER_STORE):
            ledger = own_files()
        yield Backend(maker(chosen), None if ledger is None else maker(ledger))


@contextmanager
def _memory(_: str) -> Iterator[CreateStore]:
    yield lambda name: f"memory://{name.replace('_', '-')}"


@contextmanager
def _sqlite(url: str) -> Iterator[CreateStore]:
    """Create files beside the named file, which is not touched; they are removed at the end."""
    path = Path(url.partition("///")[2])
    if not path.name:
        raise UnusableBackend(url, "write sqlite:///directory/name.db")
    if not path.parent.is_dir():
        raise UnusableBackend(url, f"directory not found: {path.parent}")
    made: list[str] = []

    def make(name: str) -> str:
        made.append(f"{path.stem}-{name}")
        return f"sqlite:///{path.with_name(made[-1] + '.db')}"

    try:
        yield make
    finally:
        for stem in made:
            for file in path.parent.glob(f"{stem}.db*"):
                file.unlink(missing_ok=True)


@contextmanager
def _postgresql(url: str) -> Iterator[CreateStore]:
    """Create databases on the server of the named database; they are dropped at the end."""
    made: list[str] = []

    def make(name: str) -> str:
        _run_sql(url, f"CREATE DATABASE \"{name}\" ENCODING 'UTF8' TEMPLATE template0")
        made.append(name)
        return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))

    try:
        yield make
    finally:
        for name in made:
            _run_sql(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _run_sql(url: str, statement: str) -> None:
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise UnusableBackend(url, "the driver is not installed: pip install 'txnframework-sql[postgresql]'") from error

    async def run() -> None:
        connection = await asyncpg.connect(urlunsplit(urlsplit(url)._replace(scheme="postgresql")))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    try:
        asyncio.run(run())
    except asyncpg.InsufficientPrivilegeError as error:
        raise UnusableBackend(url, "the user may not create databases, and each family needs its own") from error
    except (asyncpg.PostgresError, OSError, ValueError) as error:
        raise UnusableBackend(url, f"cannot create a database: {type(error).__name__}") from error


@contextmanager
def _zookeeper(url: str) -> Iterator[CreateStore]:
    """Create chroots below the named chroot; their removal is left to the owner of the servers."""
    parts = urlsplit(url)
    yield lambda name: urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


CREATORS: Final[Mapping[str, Callable[[str], AbstractContextManager[CreateStore]]]] = MappingProxyType(
    {"memory": _memory, "sqlite": _sqlite, "postgresql": _postgresql, "postgres": _postgresql, "zookeeper": _zookeeper}
)


def _known() -> str:
    *first, last = (f"{name}:" for name in CREATORS if name != "postgres")
    return f"{', '.join(first)} and {last}"
