"""
Logs in managed ledgers, for both kinds of the family: records go in alone or in batches (PIP-160), and come out alike.

``format`` is what an entry looks like, ``gathering`` decides when a batch is full, ``writer`` appends, ``reading``
replays, ``live`` knows which entries are still needed.
"""

from __future__ import annotations

from txnframework_legacy.log.format import Place
from txnframework_legacy.log.gathering import Batching, FlushReason
from txnframework_legacy.log.live import LiveRecords
from txnframework_legacy.log.reading import LedgerCount, LogRecord, read_records
from txnframework_legacy.log.writer import BatchedLogWriter, Flushed

__all__ = [
    "BatchedLogWriter",
    "Batching",
    "FlushReason",
    "Flushed",
    "LedgerCount",
    "LiveRecords",
    "LogRecord",
    "Place",
    "read_records",
]
