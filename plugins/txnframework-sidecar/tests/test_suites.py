"""The sidecar keeps the rules of its role, over the stores in memory, with the coordinator of the log-driven family."""

from __future__ import annotations

import pytest
from sidecar_world import LargeTransactionsInShortLedgers, SidecarInMemory, SidecarInShortLedgers

from txnframework.testing import BufferSuite


class TestSidecarBuffer(BufferSuite):
    """ITransactionBuffer."""

    harness = SidecarInMemory


class TestSidecarBufferWithCompaction(BufferSuite):
    """ITransactionBuffer, while what is committed is compacted all the time."""

    harness = SidecarInShortLedgers


class TestSidecarBufferWithLargeTransactions(BufferSuite):
    """ITransactionBuffer, where every transaction of two messages has a ledger of its own."""

    harness = LargeTransactionsInShortLedgers

    @pytest.mark.xfail(strict=True, reason="a commit of more than one marker is more than one entry")
    async def test_messages_of_a_commit_are_one_entry(self) -> None:
        await super().test_messages_of_a_commit_are_one_entry()
