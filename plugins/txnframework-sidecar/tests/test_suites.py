"""The sidecar keeps the rules of its role, over the stores in memory, with the coordinator of the log-driven family."""

from __future__ import annotations

from sidecar_world import SidecarInMemory, SidecarInShortLedgers

from txnframework.testing import BufferSuite


class TestSidecarBuffer(BufferSuite):
    """ITransactionBuffer."""

    harness = SidecarInMemory


class TestSidecarBufferWithCompaction(BufferSuite):
    """ITransactionBuffer, while what is committed is compacted all the time."""

    harness = SidecarInShortLedgers
