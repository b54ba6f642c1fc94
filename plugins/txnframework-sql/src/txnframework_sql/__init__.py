"""
Metadata store and ledger store in one SQLite file, for the processes of a machine, or in one PostgreSQL database.

Used with both kinds of database:

* ``_metadata_store`` (with ``_leases``), ``_ledger_store`` and ``_watch``: the roles. They use the interface
  ``_database``; ``_backends`` chooses the implementation by URL.
* ``steps``: the operations, as SQL statements and decisions without a driver or I/O.
* ``schema``, ``migrations``, ``_revisions`` and ``command``: the tables and their upgrade.

``sqlite`` and ``postgresql`` contain the code for one kind of database: connections, the executor of steps, the
creation of the schema, the translation of errors and the wake-ups of watches. PostgreSQL also has statements that
perform frequent operations in one round trip.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnframework_sql._ledger_store import SqlLedgerStore, SqlManagedLedger, open_ledger_store
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

_MODULES = {
    "LedgerOptions": "_options",
    "MetadataOptions": "_options",
    "SqlLedgerStore": "_ledger_store",
    "SqlManagedLedger": "_ledger_store",
    "SqlMetadataStore": "_metadata_store",
    "open_ledger_store": "_ledger_store",
    "open_metadata_store": "_metadata_store",
}

if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> object:
        """Import a name on first use, so that the command line lists commands without importing SQLAlchemy."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
