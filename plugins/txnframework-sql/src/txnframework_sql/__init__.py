"""
Metadata store and ledger store in one SQLite file, for the processes of a machine, or in one PostgreSQL database.

* ``schema`` and ``migrations``: the tables, one history of them for both kinds of database.
* ``steps``: what is done in a database, as statements and decisions; no driver, no I/O.
* ``sqlite`` and ``postgresql``: an executor of steps each, and what is its own: how it is opened, what its errors mean,
  what wakes watches, and in PostgreSQL the statements that do what is hot in one round trip.
* Beside them the roles, the same for both: ``_metadata_store`` (on ``_records``, ``_leases``, ``_watch``),
  ``_ledger_store`` and ``_ledger`` (on ``_entries``). They know a ``_database``, but not which one;
  ``_opening`` chooses.
* ``_revisions``, ``_upkeep`` and ``_command``: which schema a database has, and its upgrade.
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

if not TYPE_CHECKING:  # what a type checker sees are the imports above

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for: the command line lists commands without SQLAlchemy."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = found
        return found
