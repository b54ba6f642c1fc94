"""The buffer of the metadata family keeps the rules of its role with ledgers on a real NATS server."""

from __future__ import annotations

from txnframework.testing import BufferSuite, WorldHarness
from txnframework_memory.testing import MemoryMetadataHarness
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_nats.testing.ledgers import NatsLedgerHarness


class MetadataFamilyOnNatsLedgers(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` in memory, with the ledgers on JetStream."""

    stores = MemoryMetadataHarness
    ledgers = NatsLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestMetadataBufferOnNatsLedgers(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyOnNatsLedgers
