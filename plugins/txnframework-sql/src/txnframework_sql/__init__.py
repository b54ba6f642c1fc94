"""
Metadata store and ledger store in one SQLite file, for the processes of a machine, or in one PostgreSQL database.

* ``schema`` and ``migrations``: the tables, with one migration history for both kinds of database.
* ``steps``: the operations, as SQL statements and decisions without a driver or I/O.
* ``sqlite`` and ``postgresql``: one executor of steps each, and what differs: opening, error translation and the
  wake-ups of watches. PostgreSQL also has statements that perform frequent operations in one round trip.
* The roles, the same for both kinds: ``_metadata_store`` (on ``_records``, ``_leases``, ``_watch``), ``_ledger_store``
  and ``_ledger`` (on ``_entries``). They use the interface ``_database``; ``_opening`` chooses the implementation.
* ``_revisions``, ``_upkeep`` and ``_command``: the schema revision of a database, and its upgrade.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_PLACES = {
    "LedgerOptions": "_options",
    "MetadataOptions": "_options",
    "SqlLedgerStore": "_ledger_store",
    "SqlManagedLedger": "_ledger",
    "SqlMetadataStore": "_metadata_store",
    "open_ledger_store": "_ledger_store",
    "open_metadata_store": "_metadata_store",
}

if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> object:
        """Import a name on first use, so that the command line lists commands without importing SQLAlchemy."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = found
        return found
