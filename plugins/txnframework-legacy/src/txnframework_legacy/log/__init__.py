"""
Logs in managed ledgers, for both kinds of logs of the family. Records are written alone or in batches (PIP-160), and
read the same way.

``format`` encodes entries, ``gathering`` decides when a batch is full, ``writer`` appends, ``reading`` replays,
``live`` tracks which entries are still needed.
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
