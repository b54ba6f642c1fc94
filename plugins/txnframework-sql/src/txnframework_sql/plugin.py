"""The hooks: ``sqlite:///directory/txn.db`` and ``postgresql://...`` as metadata store and as ledger store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import Command, Provider, StoreContext, hookimpl
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._metadata_store import PostgresqlMetadataStore, SqlMetadataStore, open_metadata_store
from txnframework_sql._opening import check_url
from txnframework_sql._options import LedgerOptions, MetadataOptions, completed, for_postgresql, for_sqlite

if TYPE_CHECKING:
    import click


async def open_metadata(context: StoreContext) -> IMetadataStore:
    """Open the metadata store of a URL."""
    options = completed(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


async def open_ledgers(context: StoreContext) -> ILedgerStore:
    """Open the ledger store of a URL."""
    options = completed(context.options, LedgerOptions)
    return await open_ledger_store(context.url, context.environment, options, context.identity)


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command; click is imported when it is used."""
    return (Command("sql", "Show and upgrade the schema of SQL databases.", _sql),)


def _sql() -> click.Command:
    from txnframework_sql._command import sql

    return sql


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``sqlite`` and ``postgresql``."""
    return [
        Provider("sqlite", open_metadata, SqlMetadataStore, options=for_sqlite(MetadataOptions), check_url=check_url),
        Provider(
            "postgresql",
            open_metadata,
            PostgresqlMetadataStore,
            options=for_postgresql(MetadataOptions),
            check_url=check_url,
        ),
    ]


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Provide ``sqlite`` and ``postgresql``."""
    return [
        Provider("sqlite", open_ledgers, SqlLedgerStore, options=for_sqlite(LedgerOptions), check_url=check_url),
        Provider(
            "postgresql", open_ledgers, SqlLedgerStore, options=for_postgresql(LedgerOptions), check_url=check_url
        ),
    ]
