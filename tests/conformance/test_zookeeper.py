"""The metadata family keeps the rules of its roles over a real ZooKeeper as well; the ledgers are in memory."""

from __future__ import annotations

from txnframework.testing import BufferSuite, CoordinatorSuite, PendingAckSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_zookeeper.testing import ZooKeeperMetadataHarness


class MetadataFamilyInZooKeeper(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over ZooKeeper."""

    stores = ZooKeeperMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestMetadataBufferInZooKeeper(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInZooKeeper


class TestMetadataCoordinatorInZooKeeper(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInZooKeeper


class TestMetadataPendingAcksInZooKeeper(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInZooKeeper
