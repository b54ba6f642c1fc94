"""
Metadata store and ledger store in one SQLite file, for the processes of a machine, or in one PostgreSQL database.

* ``schema`` and ``migrations``: the tables, one history of them for both kinds of database.
* ``steps``: what is done in a database, as statements and decisions; no driver, no I/O.
* ``sqlite`` and ``postgresql``: an executor of steps each, and what is its own: how it is opened, what its errors mean,
  what wakes watches, and in PostgreSQL the statements that do what is hot in one round trip.
* Beside them the roles, the same for both: ``_metadata_store`` (on ``_records``, ``_leases``, ``_watch``),
  ``_ledger_store`` and ``_ledger`` (on ``_entries``). They know a ``_database``, which is an ``_executor`` and more,
  but not which one; ``_opening`` chooses.
* ``_revisions``, ``_upkeep`` and ``_command``: which schema a database has, and its upgrade.
"""

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
