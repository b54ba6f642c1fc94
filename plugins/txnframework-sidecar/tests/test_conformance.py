"""The sidecar keeps the rules of its role, over the stores in memory, with the coordinator of the log-driven family."""

from __future__ import annotations

from dataclasses import replace

from txnframework.interfaces import ITransactionBuffer
from txnframework.model import Transaction
from txnframework.plugin import SegmentContext
from txnframework.testing import BufferSuite, WorldHarness
from txnframework_legacy.plugin import txnframework_coordinators, txnframework_pending_ack_stores
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_sidecar.buffer import SidecarBuffer
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.plugin import txnframework_buffers


class SidecarInMemory(WorldHarness):
    """Coordinator and pending acknowledgments ``log``, buffer ``sidecar``."""

    stores = MemoryMetadataHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestSidecarBuffer(BufferSuite):
    """ITransactionBuffer."""

    harness = SidecarInMemory


class TidySidecar(SidecarBuffer):
    """Trims, and compacts what is committed, whenever a transaction has ended."""

    async def settle(self, ended: Transaction) -> None:
        await super().settle(ended)
        while (await self.trim(0)).left:
            pass


BUSY = SidecarOptions(
    snapshot_entries=5, sidecar_ledger_entries_max=2, compaction_ledgers_kept_max=0, compaction_entries_max=2
)


async def open_busy_buffer(context: SegmentContext) -> ITransactionBuffer:
    return TidySidecar(replace(context, options=BUSY))


class SidecarInShortLedgers(SidecarInMemory):
    """The same with short ledgers, which are closed, compacted and trimmed all the time, and with snapshots."""

    buffer = replace(SidecarInMemory.buffer, open=open_busy_buffer)


class TestSidecarBufferWithCompaction(BufferSuite):
    """ITransactionBuffer, while what is committed is compacted all the time."""

    harness = SidecarInShortLedgers
