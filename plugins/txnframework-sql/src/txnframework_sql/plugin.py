"""
The plugin hooks: ``sqlite:///directory/txn.db`` and ``postgresql://...`` as metadata store and as ledger store.

Each hook imports its implementation when it is called, so that listing commands imports little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import Command, EmbeddedServer, Provider, Server, StoreContext, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command ``sql``; click is imported when the command is used."""
    return (Command("sql", "Show and upgrade the schema of SQL databases.", _sql),)


def _sql() -> click.Command:
    from txnframework_sql.command import sql

    return sql


@hookimpl
def txnframework_servers() -> Iterable[EmbeddedServer]:
    """Return the server ``postgresql``, which needs the extra ``testing-postgresql``."""
    return (EmbeddedServer("postgresql", _postgresql),)


@contextmanager
def _postgresql() -> Iterator[Server]:
    from txnframework_sql.testing.servers.postgresql import PostgresServer

    with PostgresServer() as server:
        yield Server(server.create_database("txnframework"), server.kill, server.start)


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``sqlite`` and ``postgresql``."""
    from txnframework_sql._metadata_store import metadata_providers

    return metadata_providers()


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Provide ``sqlite`` and ``postgresql``."""
    from txnframework_sql._ledger_store import ledger_providers

    return ledger_providers()
