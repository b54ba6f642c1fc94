"""
Logs in managed ledgers, for both kinds of logs of the family. Records are written alone or in batches (PIP-160), and
read the same way.

``format`` encodes entries and replays a log, ``writer`` gathers records into batches and appends them. ``switches``
stores and watches the switches that enable batching at run time, ``switched_writer`` applies and measures them.
"""

from __future__ import annotations

from txnframework_legacy.log.format import LedgerCount, LogRecord, RecordPosition, read_records
from txnframework_legacy.log.writer import BatchedLogWriter, Batching, FlushMetrics, FlushReason

__all__ = [
    "BatchedLogWriter",
    "Batching",
    "FlushMetrics",
    "FlushReason",
    "LedgerCount",
    "LogRecord",
    "RecordPosition",
    "read_records",
]
