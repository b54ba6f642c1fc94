"""The metadata family keeps the rules of its buffer, over the stores in memory."""

from __future__ import annotations

from txnframework.testing import BufferSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.plugin import txnframework_buffers, txnframework_coordinators


class MetadataFamilyInMemory(WorldHarness):
    """Coordinator and buffer ``metadata`` over memory."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()


class TestMetadataBuffer(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInMemory
