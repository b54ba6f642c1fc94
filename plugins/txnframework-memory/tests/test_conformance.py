"""The stores in memory keep the rules of their roles."""

from __future__ import annotations

from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness


class TestMemoryMetadataStore(MetadataStoreSuite):
    """IMetadataStore in memory."""

    harness = MemoryMetadataHarness


class TestMemoryLedgerStore(LedgerStoreSuite):
    """ILedgerStore in memory."""

    harness = MemoryLedgerHarness
