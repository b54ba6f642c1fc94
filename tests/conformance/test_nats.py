"""The metadata family keeps the rules of its roles over a real NATS server as well; the ledgers are in memory."""

from __future__ import annotations

from txnframework.testing import BufferSuite, CoordinatorSuite, MetadataStoreSuite, PendingAckSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_nats.testing import NatsClusterMetadataHarness, NatsMetadataHarness


class MetadataFamilyInNats(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over NATS."""

    stores = NatsMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestMetadataBufferInNats(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInNats


class TestMetadataCoordinatorInNats(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInNats


class TestMetadataPendingAcksInNats(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInNats


class TestNatsClusterMetadataStore(MetadataStoreSuite):
    """IMetadataStore in a stream that three servers keep."""

    harness = NatsClusterMetadataHarness
