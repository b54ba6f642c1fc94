"""What the stores need of a database; one implementation for each kind of it."""

from __future__ import annotations

from typing import Protocol

from txnframework.environment import Environment
from txnframework_sql._entries import Entries
from txnframework_sql._executor import Executor
from txnframework_sql._options import LedgerOptions, MetadataOptions
from txnframework_sql._records import Records
from txnframework_sql._watch import WakeUps, Watches
from txnframework_sql.steps.leases import Clock


class Database(Executor, Protocol):
    """An executor, and what its kind of database does in its own way."""

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records."""

    def clock(self, environment: Environment) -> Clock:
        """Return the clock by which leases expire for everybody who shares the database."""

    def wake_ups(self, watches: Watches, environment: Environment) -> WakeUps:
        """Return what wakes the watches of one store after the commits of others."""

    def entries(self, options: LedgerOptions) -> Entries:
        """Return how the entries of one store's ledgers are appended and read."""
