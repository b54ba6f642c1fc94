"""What is there of the family keeps the rules of its roles, over the stores in memory."""

from __future__ import annotations

from dataclasses import replace

from recording_buffer import RecordingBuffer, open_recording

from txnframework.interfaces import IPendingAckStore, ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, Provider, SubscriptionContext
from txnframework.testing import CoordinatorSuite, PendingAckSuite, WorldHarness
from txnframework_legacy.coordinator.coordinator import LogCoordinator
from txnframework_legacy.log import Batching
from txnframework_legacy.options import CoordinatorOptions, PendingAckOptions
from txnframework_legacy.pending_acks.store import LogPendingAcks
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness

FAMILIES = frozenset({"log"})


async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
    return LogCoordinator(context)


async def open_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
    return LogPendingAcks(context)


class LogFamilyInMemory(WorldHarness):
    """Coordinator and pending acknowledgments ``log``, with a buffer that only remembers."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    coordinator = Provider("log", open_coordinator, LogCoordinator, FAMILIES, CoordinatorOptions)
    buffer = Provider("recording", open_recording, RecordingBuffer, FAMILIES)
    pending_acks = Provider("log", open_pending_acks, LogPendingAcks, FAMILIES, PendingAckOptions)


async def open_busy_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
    return LogPendingAcks(replace(context, options=PendingAckOptions(ledger_entries_max=3, idle_entries_max=0)))


async def open_busy_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
    options = CoordinatorOptions(ledger_entries_max=3, batching=Batching(enabled=True, delay_ms=0))
    return LogCoordinator(replace(context, options=options))


class LogFamilyInShortLedgers(LogFamilyInMemory):
    """The same with ledgers of a few entries, which are closed and trimmed all the time, and batches in the one log."""

    coordinator = Provider("log", open_busy_coordinator, LogCoordinator, FAMILIES, CoordinatorOptions)
    pending_acks = Provider("log", open_busy_pending_acks, LogPendingAcks, FAMILIES, PendingAckOptions)


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
