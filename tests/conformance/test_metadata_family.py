"""The metadata family keeps the rules of its roles, over the stores in memory."""

from __future__ import annotations

from txnframework.testing import BufferSuite, CoordinatorSuite, JointCommitSuite, PendingAckSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)


class MetadataFamilyInMemory(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over memory."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class MetadataFamilyInOneMemory(MetadataFamilyInMemory):
    """The same with records and ledgers in one space."""

    one_database = True


class TestMetadataJointCommits(JointCommitSuite):
    """IJointCoordinator, IPlannableBuffer and IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInOneMemory


class TestMetadataBuffer(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInMemory


class TestMetadataCoordinator(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInMemory


class TestMetadataPendingAcks(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInMemory
