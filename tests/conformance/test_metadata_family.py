"""The metadata family keeps the rules of its roles, over the stores in memory; with and without atomic batches."""

from __future__ import annotations

from txnframework.interfaces import IAtomicBatchStore
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


class MetadataFamilyWithoutBatches(MetadataFamilyInMemory):
    """The same on a store of which it knows no atomic batches: put, recheck, withdraw; admitted acknowledgments."""

    without = (IAtomicBatchStore,)


class MetadataFamilyInOneMemory(MetadataFamilyInMemory):
    """The same with records and ledgers in one space."""

    one_database = True


class TestMetadataJointCommits(JointCommitSuite):
    """IJointCoordinator, IJointBuffer and IJointPendingAcks of the metadata family."""

    harness = MetadataFamilyInOneMemory


class TestMetadataBuffer(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInMemory


class TestMetadataBufferWithoutBatches(BufferSuite):
    """ITransactionBuffer of the metadata family, step by step."""

    harness = MetadataFamilyWithoutBatches


class TestMetadataCoordinator(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInMemory


class TestMetadataCoordinatorWithoutBatches(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family, step by step."""

    harness = MetadataFamilyWithoutBatches


class TestMetadataPendingAcks(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInMemory


class TestMetadataPendingAcksWithoutBatches(PendingAckSuite):
    """IPendingAckStore of the metadata family, step by step: acknowledgments are admitted after a second look."""

    harness = MetadataFamilyWithoutBatches
