"""The stores in memory keep the rules of their roles."""

from __future__ import annotations

from txnframework.testing import MetadataStoreSuite
from txnframework_memory.testing import MemoryMetadataHarness


class TestMemoryMetadataStore(MetadataStoreSuite):
    """IMetadataStore in memory."""

    harness = MemoryMetadataHarness
