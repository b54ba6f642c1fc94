"""The store providers that the plugin hooks return."""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import Provider, StoreContext
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._metadata_store import PostgresqlMetadataStore, SqlMetadataStore, open_metadata_store
from txnframework_sql._opening import check_url
from txnframework_sql._options import LedgerOptions, MetadataOptions, completed, for_postgresql, for_sqlite


async def open_metadata(context: StoreContext) -> IMetadataStore:
    """Open the metadata store of a URL."""
    options = completed(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


async def open_ledgers(context: StoreContext) -> ILedgerStore:
    """Open the ledger store of a URL."""
    options = completed(context.options, LedgerOptions)
    return await open_ledger_store(context.url, context.environment, options, context.identity)


def metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Return the providers ``sqlite`` and ``postgresql``."""
    for_one, for_other = for_sqlite(MetadataOptions), for_postgresql(MetadataOptions)
    return [
        Provider("sqlite", open_metadata, SqlMetadataStore, options=for_one, check_url=check_url),
        Provider("postgresql", open_metadata, PostgresqlMetadataStore, options=for_other, check_url=check_url),
    ]


def ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Return the providers ``sqlite`` and ``postgresql``."""
    for_one, for_other = for_sqlite(LedgerOptions), for_postgresql(LedgerOptions)
    return [
        Provider("sqlite", open_ledgers, SqlLedgerStore, options=for_one, check_url=check_url),
        Provider("postgresql", open_ledgers, SqlLedgerStore, options=for_other, check_url=check_url),
    ]
