from __future__ import annotations

import asyncio
import importlib
import importlib.util
import io
import os
import secrets
import sys
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import txnframework
import txnframework.cli
from txnframework import Client, Consumer
from txnframework.environment import Environment
from txnframework.metrics import Metrics
from txnframework.plugin import PluginRegistry, load_plugins

sys.path.insert(0, str(Path(__file__).parent))  # for what several of these tests have in common

from installed import without_log_family

if TYPE_CHECKING:
    from txnframework_sql.testing.servers.postgresql import PostgresServer

PATIENCE_S = 300
"""Timeout of a test in seconds. Tests over a server get more time, because the machine may be busy."""
SOON_MS = 60_000
PLUGINS = (
    "txnframework_memory",
    "txnframework_metadata",
    "txnframework_dispatchers",
    "txnframework_sql",
    "txnframework_example",
    "txnframework_zookeeper",
    "txnframework_nats",
)
LEGACY = "txnframework_legacy"
LOG_FAMILY = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
BACKENDS = {"memory": "txnframework_memory", "sqlite": "txnframework_sql", "notebook": "txnframework_example"}
SERVERS = ("postgresql", "zookeeper", "nats")
SEVERAL_DATABASES = ("zookeeper", "nats")
"""Servers where one step cannot change records and messages."""
OF_STORES = {"stores", "shared", "memory", "sqlite", *SERVERS}
"""The fixtures that open stores. A test that uses none of them has the same result over every store."""
# Not a skip: where the plugin is not installed there is nothing to say about it.
collect_ignore = (
    []
    if importlib.util.find_spec(BACKENDS["sqlite"])
    else [
        "test_backup.py",
        "test_changes_in_json.py",
        "test_doctor.py",
        "test_command_line.py",
        "test_killed_by_a_message.py",
        "test_lost_ends.py",
        "test_printing_by_command.py",
        "test_processes.py",
        "test_restoring.py",
        "test_restoring_by_command.py",
        "test_restoring_log_family.py",
        "test_store_copy.py",
        "test_store_copy_audit.py",
        "test_store_copy_by_command.py",
        "test_store_copy_log_family.py",
        "test_store_copy_processes.py",
        "test_store_copy_reopening.py",
        "test_transaction_commands.py",
    ]
)
if importlib.util.find_spec("greenlet") is None:  # SQLAlchemy needs it for asyncio
    collect_ignore.append("test_order_service.py")
_names = count()


class Stores:
    """The data of one test. Every ``open`` is another client of it; opening after a close is a restart."""

    def __init__(
        self,
        url: str,
        registry: PluginRegistry,
        environment: Environment | None = None,
        ledger_url: str = "",
    ) -> None:
        self.url = url
        self.ledger_url = ledger_url
        self.registry = registry
        self.environment = environment
        self.options: dict[str, object] = {}
        self.domains: dict[str, object] = {}

    def config(self, **sections: dict[str, object]) -> dict[str, object]:
        subscriptions = {"redelivery_delay_ms": 0} | sections.pop("subscriptions", {})
        metadata = {"url": self.url, "options": self.options}
        ledger = {"url": self.ledger_url or self.url}
        domains = {"domains": self.domains} if self.domains else {}
        return {"metadata": metadata, "ledger": ledger, "subscriptions": subscriptions, **domains, **sections}

    def open(
        self, *, metrics: Metrics | None = None, **sections: dict[str, object]
    ) -> AbstractAsyncContextManager[txnframework.Client]:
        config, registry, environment = self.config(**sections), self.registry, self.environment
        return txnframework.open(config, registry=registry, environment=environment, metrics=metrics)

    def open_blocking(self, **sections: dict[str, object]) -> AbstractContextManager[txnframework.blocking.Client]:
        return txnframework.blocking.open(self.config(**sections), registry=self.registry, environment=self.environment)

    @staticmethod
    def run(work: Awaitable[None]) -> None:
        """Run a test's coroutine; one that hangs fails."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await work

        asyncio.run(bounded())

    @staticmethod
    async def receive(consumer: Consumer, messages: int) -> list[bytes]:
        """Return the values of the next messages."""
        return [(await consumer.receive(timeout_ms=SOON_MS)).value for _ in range(messages)]

    @staticmethod
    async def read(client: Client, topic: str, **options: Any) -> list[bytes]:
        """Return the values of everything that may be read now."""
        async with await client.reader(topic, **options) as reader:
            return [message.value async for message in reader]


@pytest.fixture(scope="session")
def registry() -> PluginRegistry:
    return _registry_of(name for name in PLUGINS if importlib.util.find_spec(name))


def _registry_of(names: Iterable[str]) -> PluginRegistry:
    return load_plugins([importlib.import_module(f"{name}.plugin") for name in names])


def _wanted() -> list[str]:
    """Return the stores named by TXN_BACKENDS; a store that is named but not installed is an error, not a skip.

    Without TXN_BACKENDS: the installed stores that need no server.
    """
    named = os.environ.get("TXN_BACKENDS", "").split()
    if unknown := {*named} - {*BACKENDS, *SERVERS}:
        raise pytest.UsageError(f"TXN_BACKENDS names {sorted(unknown)}; there are {[*BACKENDS, *SERVERS]}")
    return named or [name for name, package in BACKENDS.items() if importlib.util.find_spec(package)]


def _wanted_families() -> list[str]:
    named = os.environ.get("TXN_FAMILIES", "metadata").split()
    if unknown := {*named} - {"metadata", "log"}:
        raise pytest.UsageError(f"TXN_FAMILIES names {sorted(unknown)}; there are metadata and log")
    return named


def _wanted_shared() -> list[str]:
    return [name for name in _wanted() if name in ("sqlite", *SERVERS)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of stores that are not wanted; they are not reported as skipped."""
    others = {"memory", "sqlite", *SERVERS} - {*_wanted()} | ({"shared"} if not _wanted_shared() else set())
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    left = [
        item for item in own if _is_of(item, others) or not _is_of_wanted_family(item) or _needs_no_other_server(item)
    ]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _is_of_wanted_family(item: pytest.Item) -> bool:
    """Return whether the test uses topics of a wanted family; by default, the metadata family is wanted."""
    has_choice = "stores" in getattr(item, "fixturenames", ())
    family = item.callspec.params["stores"][1] if has_choice else "metadata"  # type: ignore[attr-defined]
    return family in _wanted_families()


def _needs_no_other_server(item: pytest.Item) -> bool:
    """
    Return whether the test is marked ``one_server``, and is for a server other than PostgreSQL.

    The suites of the stores cover what each server promises, and the suites of the metadata family what is built on it.
    """
    has_choice = item.get_closest_marker("one_server") is not None and "stores" in getattr(item, "fixturenames", ())
    return has_choice and item.callspec.params["stores"][0] in {*SERVERS} - {"postgresql"}  # type: ignore[attr-defined]


def _is_of(item: pytest.Item, others: set[str]) -> bool:
    names = {*getattr(item, "fixturenames", ())}
    if "one_database" in names and item.callspec.params["shared"] in SEVERAL_DATABASES:  # type: ignore[attr-defined]
        return True
    if "without_server" in names and item.callspec.params["shared"] in SERVERS:  # type: ignore[attr-defined]
        return True
    if "in_memory" in names and item.callspec.params["stores"][0] != "memory":  # type: ignore[attr-defined]
        return True
    return bool(others & (names & OF_STORES or {"memory"}))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use ``stores`` over each wanted store.

    A test marked ``families`` runs with topics of each family; a test marked ``log_family`` runs with the plugins of
    both. TXN_FAMILIES names the families, ``metadata``, ``log`` or both.
    """
    if "stores" not in metafunc.fixturenames:
        return
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    families = ["metadata"]
    if "log_family" in marks:
        families = ["log"]
    elif "families" in marks and "metadata_family" not in marks:
        families = _wanted_families()
    params = [(backend, family) for backend in _wanted() for family in families]
    ids = [backend if family == "metadata" else f"{backend}-{family}" for backend, family in params]
    metafunc.parametrize("stores", params, ids=ids, indirect=True)


@pytest.fixture
def stores(
    request: pytest.FixtureRequest, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stores]:
    """The wanted stores, one after the other. For the log family, short topic names mean topics of that family."""
    backend, family = request.param
    for found in _stores(backend, registry, tmp_path):
        if family == "log":
            found.registry = _registry_of(name for name in (*PLUGINS, LEGACY) if importlib.util.find_spec(name))
            found.domains = {"persistent": LOG_FAMILY, "segment": LOG_FAMILY}
            monkeypatch.setattr("txnframework.model.names.DEFAULT_DOMAIN", "persistent")
        yield found


@pytest.fixture(params=_wanted_shared())
def shared(request: pytest.FixtureRequest, registry: PluginRegistry, tmp_path: Path) -> Iterator[Stores]:
    """Stores that several processes share."""
    yield from _stores(request.param, registry, tmp_path)


@pytest.fixture
def one_database(shared: Stores) -> None:
    """Restrict a test to stores that keep records and messages in one database."""


@pytest.fixture
def in_memory(stores: Stores) -> None:
    """Restrict a test of both families to stores in memory, because it needs virtual time."""


@pytest.fixture
def without_server(shared: Stores) -> None:
    """Restrict a test to stores without a server, because its result is the same over every store and it starts
    a process.
    """


def _stores(backend: str, registry: PluginRegistry, tmp_path: Path) -> Iterator[Stores]:
    if backend == "memory":
        yield Stores(f"memory://end-to-end-{next(_names)}", registry)
    elif backend == "notebook":
        # The tutorial's store has no atomic batches, and no ledgers.
        yield Stores(f"notebook:///{tmp_path}/book.jsonl", registry, ledger_url=f"memory://end-to-end-{next(_names)}")
    elif backend == "postgresql":
        from txnframework_sql.testing.servers.databases import clean_database

        with clean_database() as url:
            yield Stores(url, registry)
    elif backend == "zookeeper":
        from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts

        # It keeps no messages.
        url = f"zookeeper://{shared_hosts()}/end-to-end/{secrets.token_hex(8)}"
        yield Stores(url, registry, ledger_url=f"sqlite:///{tmp_path}/ledgers.db")
    elif backend == "nats":
        from txnframework_nats.testing import remove_streams
        from txnframework_nats.testing.servers.nats import shared_hosts as nats_hosts

        url = f"nats://{nats_hosts()}/end-to-end-{secrets.token_hex(8)}"
        yield Stores(url, registry)
        asyncio.run(remove_streams(url))
    else:
        yield Stores(f"sqlite:///{tmp_path}/txn.db", registry)


@pytest.fixture
def memory(registry: PluginRegistry) -> Stores:
    """Stores in memory, for tests of what does not depend on the stores."""
    return Stores(f"memory://end-to-end-{next(_names)}", registry)


@pytest.fixture
def sqlite(registry: PluginRegistry, tmp_path: Path) -> Stores:
    """Stores in a file, for tests of files."""
    return Stores(f"sqlite:///{tmp_path}/txn.db", registry)


@pytest.fixture
def zookeeper(registry: PluginRegistry, tmp_path: Path) -> Iterator[Stores]:
    """Stores with records in ZooKeeper, for tests of sessions."""
    yield from _stores("zookeeper", registry, tmp_path)


@pytest.fixture
def nats(registry: PluginRegistry, tmp_path: Path) -> Iterator[Stores]:
    """Stores in NATS, for tests of streams."""
    yield from _stores("nats", registry, tmp_path)


class ServerStores(Stores):
    """Stores on a server of their own, to which the test may do anything."""

    def __init__(self, server: PostgresServer, registry: PluginRegistry) -> None:
        super().__init__(server.create_database("stores"), registry)
        self._server = server

    def in_schema(self, name: str) -> Stores:
        """Return the stores of another installation, in a schema of the same database."""
        return Stores(f"{self.url}?options=-csearch_path%3D{name}", self.registry)

    def run_sql(self, statement: str) -> None:
        """Run SQL in the database of the stores, as its owner."""
        self._server.run(statement, "stores")

    def create_database(self, name: str) -> str:
        """Create an empty database beside that of the stores; return its URL."""
        return self._server.create_database(name)

    def copy_database(self, source: str, to: str) -> None:
        """Make a database a copy of another one, to which no client is connected."""
        self._server.run(f'DROP DATABASE IF EXISTS "{to}" WITH (FORCE)')
        self._server.run(f'CREATE DATABASE "{to}" TEMPLATE "{source}"')

    def restart(self) -> None:
        """Kill the server with all its processes, and start it on its data."""
        self._server.kill()
        self._server.start()

    def disconnect(self) -> None:
        """End every connection to the stores."""
        everybody = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'stores'"
        self._server.run(everybody)


@pytest.fixture
def postgresql(registry: PluginRegistry) -> Iterator[ServerStores]:
    """Stores in a PostgreSQL that no other test uses."""
    from txnframework_sql.testing.servers.postgresql import PostgresServer

    with PostgresServer() as server:
        yield ServerStores(server, registry)


@pytest.fixture
def cli(shared: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command in a directory whose configuration names a database of its own."""
    ledger = f'[ledger]\nurl = "{shared.ledger_url}"\n' if shared.ledger_url else ""
    (tmp_path / "txnframework.toml").write_text(f'[metadata]\nurl = "{shared.url}"\n{ledger}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("txnframework.plugin._discovery.entry_points", without_log_family)

    def run(*arguments: str, stdin: bytes = b"") -> SimpleNamespace:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = txnframework.cli.main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return SimpleNamespace(status=status, out=out, err=err)

    return run
