"""The legacy family keeps the rules of its roles, over the stores in memory."""

from __future__ import annotations

from dataclasses import replace

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, SegmentContext, SubscriptionContext
from txnframework.testing import BufferSuite, CoordinatorSuite, PendingAckSuite, WorldHarness
from txnframework_legacy.buffer.buffer import MarkerBuffer
from txnframework_legacy.coordinator.coordinator import LogCoordinator
from txnframework_legacy.log import Batching
from txnframework_legacy.options import BufferOptions, CoordinatorOptions, PendingAckOptions
from txnframework_legacy.pending_acks.store import LogPendingAcks
from txnframework_legacy.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness


async def open_busy_buffer(context: SegmentContext) -> ITransactionBuffer:
    options = BufferOptions(
        snapshot_entries=4, segmented_snapshots=True, snapshot_segment_branches=8, snapshot_entry_bytes_max=1_024
    )
    return MarkerBuffer(replace(context, options=options))


class LogFamilyInMemory(WorldHarness):
    """Coordinator and pending acknowledgments ``log``, buffer ``marker``."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


async def open_busy_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
    return LogPendingAcks(replace(context, options=PendingAckOptions(ledger_entries_max=3, idle_entries_max=0)))


async def open_busy_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
    options = CoordinatorOptions(ledger_entries_max=3, batching=Batching(enabled=True, delay_ms=0))
    return LogCoordinator(replace(context, options=options))


class LogFamilyInShortLedgers(LogFamilyInMemory):
    """The same with ledgers of a few entries, which are closed and trimmed all the time, and batches in the one log."""

    coordinator = replace(LogFamilyInMemory.coordinator, open=open_busy_coordinator)
    buffer = replace(LogFamilyInMemory.buffer, open=open_busy_buffer)
    pending_acks = replace(LogFamilyInMemory.pending_acks, open=open_busy_pending_acks)


class TestLogCoordinator(CoordinatorSuite):
    """ITransactionCoordinator."""

    harness = LogFamilyInMemory


class TestLogCoordinatorInShortLedgers(CoordinatorSuite):
    """ITransactionCoordinator, with logs that are trimmed all the time."""

    harness = LogFamilyInShortLedgers


class TestLogPendingAcks(PendingAckSuite):
    """IPendingAckStore."""

    harness = LogFamilyInMemory


class TestLogPendingAcksInShortLedgers(PendingAckSuite):
    """IPendingAckStore, with logs that are trimmed all the time."""

    harness = LogFamilyInShortLedgers


class TestMarkerBuffer(BufferSuite):
    """ITransactionBuffer."""

    harness = LogFamilyInMemory


class TestMarkerBufferWithSnapshots(BufferSuite):
    """ITransactionBuffer, with a snapshot in segments after every few entries."""

    harness = LogFamilyInShortLedgers
