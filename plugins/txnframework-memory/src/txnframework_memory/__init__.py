"""Metadata store and ledger store in memory: for tests, examples and simulation."""

from __future__ import annotations

from txnframework_memory._database import MemoryConnection, MemoryDatabase
from txnframework_memory._ledger_store import MemoryLedgerStore, MemoryManagedLedger
from txnframework_memory._link import Pause, yield_once
from txnframework_memory._metadata_store import MemoryLease, MemoryMetadataStore
from txnframework_memory._records import RowLocked
from txnframework_memory.plugin import connect
from txnframework_memory.space import MemorySpace

__all__ = [
    "MemoryConnection",
    "MemoryDatabase",
    "MemoryLease",
    "MemoryLedgerStore",
    "MemoryManagedLedger",
    "MemoryMetadataStore",
    "MemorySpace",
    "Pause",
    "RowLocked",
    "connect",
    "yield_once",
]
