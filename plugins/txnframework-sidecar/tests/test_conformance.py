"""The sidecar keeps the rules of its role, over the stores in memory, with the coordinator of the log-driven family."""

from __future__ import annotations

from txnframework.testing import BufferSuite, WorldHarness
from txnframework_legacy.plugin import txnframework_coordinators, txnframework_pending_ack_stores
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_sidecar.plugin import txnframework_buffers


class SidecarInMemory(WorldHarness):
    """Coordinator and pending acknowledgments ``log``, buffer ``sidecar``."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestSidecarBuffer(BufferSuite):
    """ITransactionBuffer."""

    harness = SidecarInMemory
