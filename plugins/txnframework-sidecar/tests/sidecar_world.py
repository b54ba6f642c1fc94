"""Processes with a sidecar buffer over stores in memory: as configured by default, and with everything short."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from txnframework.interfaces import ITransactionBuffer
from txnframework.model import Transaction
from txnframework.plugin import SegmentContext
from txnframework.testing import WorldHarness
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


async def open_in_short_ledgers(context: SegmentContext) -> ITransactionBuffer:
    return SidecarBuffer(replace(context, options=BUSY))


LARGE = msgspec.structs.replace(BUSY, marker_messages_max=1, own_ledgers_open_max=1)


async def open_for_large_transactions(context: SegmentContext) -> ITransactionBuffer:
    return SidecarBuffer(replace(context, options=LARGE))


async def open_busy_for_large_transactions(context: SegmentContext) -> ITransactionBuffer:
    return TidySidecar(replace(context, options=LARGE))


class ShortLedgers(SidecarInMemory):
    """Ledgers of two entries, compacted on trimming."""

    buffer = replace(SidecarInMemory.buffer, open=open_in_short_ledgers)


class LargeTransactions(SidecarInMemory):
    """The same, and a transaction of two messages is a large one: the second stands in a ledger of its own."""

    buffer = replace(SidecarInMemory.buffer, open=open_for_large_transactions)


class LargeTransactionsInShortLedgers(SidecarInMemory):
    """The same, compacted and trimmed all the time."""

    buffer = replace(SidecarInMemory.buffer, open=open_busy_for_large_transactions)
