"""Metadata store and ledger store in one SQLite file, for several processes at once."""

from __future__ import annotations

from txnframework_sql._ledger import SqlManagedLedger
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._metadata_store import SqlMetadataStore, open_metadata_store
from txnframework_sql._options import LedgerOptions, MetadataOptions

__all__ = [
    "LedgerOptions",
    "MetadataOptions",
    "SqlLedgerStore",
    "SqlManagedLedger",
    "SqlMetadataStore",
    "open_ledger_store",
    "open_metadata_store",
]
