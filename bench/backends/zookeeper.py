"""
ZooKeeper, measured with the framework and with kazoo alone making the same changes to the same kinds of nodes.

The server is started for the run and confirms only what is on disk. TXN_TEST_ZOOKEEPER_HOSTS names other servers.
ZooKeeper keeps no messages, so the ledgers are in memory, and only ZooKeeper is measured. If a second process reads
them, they are in PostgreSQL, which notifies waiting processes of appends; SQLite is polled every 20 ms. That server is
started for the run, unless TXN_TEST_POSTGRESQL_URL names one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend import Side
from measurement import timed

WAIT_S = 30.0
VALUE = b"x" * 320
"""As large as a header with its index entries."""
READ_ELSEWHERE = "visible"
"""The database whose messages another process reads."""
FINAL = f"txn-by-final-state:/{'0' * 40}"
OPEN = f"txn-by-deadline:/{'0' * 40}"
HEAP = "-Xmx1g"
"""More than a hundred thousand transactions need, because a full heap would distort the measurement."""


class RawTransactions:
    """The requests of a transaction with one write, by kazoo alone: begin, operation and end."""

    def __init__(self, client: Any, root: str) -> None:
        self._client = client
        self._root = root
        for parent in ("records/txn", "records/txn-op", "indexes/writes", f"indexes/{OPEN}", f"indexes/{FINAL}"):
            client.ensure_path(f"{root}/{parent}")

    def begin(self, name: str) -> Any:
        """Create the header and its index entry; return kazoo's pending result."""
        asked = self._client.transaction()
        asked.create(f"{self._root}/indexes/{OPEN}/{name}")
        asked.create(f"{self._root}/records/txn/{name}", VALUE)
        return asked.commit_async()

    def write(self, name: str) -> Any:
        """Create the operation and its index entry, if the header is unchanged."""
        asked = self._client.transaction()
        asked.check(f"{self._root}/records/txn/{name}", version=0)
        asked.create(f"{self._root}/records/txn-op/{name}")
        asked.create(f"{self._root}/indexes/writes/{name}")
        asked.create(f"{self._root}/records/txn-op/{name}/1", VALUE)
        return asked.commit_async()

    def end(self, name: str) -> Any:
        """Change the header, naming its version, and move its index entry."""
        asked = self._client.transaction()
        asked.delete(f"{self._root}/indexes/{OPEN}/{name}")
        asked.create(f"{self._root}/indexes/{FINAL}/{name}")
        asked.set_data(f"{self._root}/records/txn/{name}", VALUE, version=0)
        return asked.commit_async()


@dataclass(frozen=True)
class ZooKeeperBackend:
    made: ExitStack
    hosts: str
    name: str = "zookeeper"
    versions: dict[str, str] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)
    root: str = field(default_factory=lambda: f"/bench/{secrets.token_hex(8)}")

    def config(self, database: str) -> dict[str, object]:
        ledger = self._notifying(database) if database == READ_ELSEWHERE else f"memory://{database}"
        return {"metadata": {"url": f"zookeeper://{self.hosts}{self.root}/{database}"}, "ledger": {"url": ledger}}

    def _notifying(self, database: str) -> str:
        """Return the URL of a database, which is made when it is first asked for."""
        from txnframework_sql.testing.servers.databases import fresh_database

        if database not in self.databases:
            self.databases[database] = self.made.enter_context(fresh_database())
        return self.databases[database]

    @contextmanager
    def raw(self, database: str) -> Iterator[RawTransactions]:
        """The driver alone."""
        from kazoo.client import KazooClient

        client = KazooClient(self.hosts)
        client.start(WAIT_S)
        try:
            yield RawTransactions(client, f"{self.root}/{database}")
        finally:
            client.stop()
            client.close()

    @asynccontextmanager
    async def raw_update(self) -> AsyncIterator[Side]:
        """End one transaction after the other by one multi; waiting blocks, which is the least that it can cost."""
        with self.raw("raw") as raw:
            number = 0

            async def end(name: str) -> None:
                assert_done(raw.end(name).get(timeout=WAIT_S))

            async def once() -> float:
                nonlocal number
                number += 1
                assert_done(raw.begin(str(number)).get(timeout=WAIT_S))
                return await timed(end(str(number)))

            yield once


def assert_done(results: list[object]) -> None:
    """Raise what a multi was refused for."""
    for result in results:
        if isinstance(result, Exception):
            raise result


@contextmanager
def zookeeper(directory: Path) -> Iterator[ZooKeeperBackend]:
    """Make chroots on a server; one of our own is started with the memory that a figure's nodes take."""
    from txnframework_zookeeper.testing.servers.zookeeper import HOSTS_VARIABLE, Setup, ZooKeeper, server_version

    with ExitStack() as made:
        hosts = os.environ.get(HOSTS_VARIABLE)
        if not hosts:
            hosts = made.enter_context(ZooKeeper(directory / "zookeeper", setup=Setup(java_options=(HEAP,)))).hosts
        yield ZooKeeperBackend(made, hosts, versions={"zookeeper": server_version(hosts)})
