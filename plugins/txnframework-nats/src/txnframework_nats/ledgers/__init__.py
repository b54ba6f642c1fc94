"""
Managed ledgers on JetStream: each is a log, one subject of a stream, and every change is a record of that log.

The layers, lowest first: ``_requests`` speaks to the servers. ``_records``, ``_windows``, ``_state``, ``_decisions``
and ``_snapshots`` are pure: the state that records make, and the records that calls make. ``_log`` stores records, each
directly behind what was read, with ``_turns`` and ``_snapshot_subject``. ``_appender``, ``_cache``, ``_reader`` and
``_watches`` work on one log; ``_shard``, ``_numbers`` and ``_installation`` on the streams. ``_open_logs`` joins them
for the roles, ``_managed_ledger`` and ``_ledger_store``; ``_store_copy`` does what copies of whole stores need.
"""

from __future__ import annotations

from txnframework_nats.ledgers._ledger_store import NatsLedgerStore, ledger_providers, open_ledger_store
from txnframework_nats.ledgers._managed_ledger import NatsManagedLedger
from txnframework_nats.ledgers._options import NatsLedgerOptions

__all__ = ["NatsLedgerOptions", "NatsLedgerStore", "NatsManagedLedger", "ledger_providers", "open_ledger_store"]
