"""
Transaction ids that are never used again: reserved in blocks, so that beginning does not contend for a counter.

Coordinators of every family use them: the reservations show whether a ledger belongs to a metadata store.
"""

from __future__ import annotations

import asyncio

from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import ICoordinatorShare, IMetadataStore
from txnframework.model.ids import COORDINATOR_BITS, TxnID
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import ids_key
from txnframework.model.records import IdBlock, decode, encode
from txnframework.plugin._contexts import CoordinatorContext

_FIRST_NUMBER = 1


class TransactionIds:
    """
    The ids of one coordinator in this process, assigned one by one within a block that compare-and-set reserved.

    A block is lost if its reservation's outcome is unknown, if the call is cancelled, and if the process dies. There
    are plenty of numbers, and an id must never be assigned twice.
    """

    def __init__(self, store: IMetadataStore, coordinator: int, block_size: int, attempts_max: int) -> None:
        self._store = store
        self._coordinator = coordinator
        self._block_size = block_size
        self._attempts_max = attempts_max
        self._lock = asyncio.Lock()
        self._next = self._stop = 0
        # The block after the present one, once it is reserved.
        self._spare: tuple[int, int] | None = None

    @property
    def has_some(self) -> bool:
        """Whether an id is reserved, so that ``next_id`` does not write."""
        return self._next < self._stop or self._spare is not None

    async def keep_ready(self, count: int) -> None:
        """Reserve the next block if fewer than ``count`` ids are left; errors are those of ``next_id``."""
        async with self._lock:
            if self._stop - self._next < count and self._spare is None:
                self._spare = await self._reserve()

    async def next_id(self) -> TxnID:
        """
        Return an id that was never assigned in any process.

        :raises Unavailable: no block could be reserved; trying again may help.
        """
        async with self._lock:
            if self._next >= self._stop:
                self._next, self._stop = self._spare or await self._reserve()
                self._spare = None
            number = self._next
            self._next += 1
        return TxnID(self._coordinator, number)

    async def _reserve(self) -> tuple[int, int]:
        """Reserve a block for this process; return its first number, and the number after its last."""
        key = ids_key(self._coordinator)
        for _ in range(self._attempts_max):
            record = await self._store.get(key)
            start = _FIRST_NUMBER if record is None else decode(IdBlock, record).next
            stop = start + self._block_size
            expected = Expect.ABSENT if record is None else record.version
            try:
                await self._store.put(Put(key, encode(IdBlock(next=stop)), expected))
            except (VersionMismatch, OutcomeUnknown):
                # Unknown: this process may have reserved the block, or another process the same numbers. The two cases
                # look alike, so the block is abandoned.
                continue
            return start, stop
        raise Unavailable(f"no transaction ids could be reserved in {self._attempts_max} attempts")


class SharedTransactionIds:
    """
    The ids of the coordinators that this host holds, so that hosts do not contend for one counter.

    A host that holds no coordinator ids uses a random coordinator. The transaction ids are equally valid, and the host
    contends with others only when it reserves a block.
    """

    def __init__(
        self, context: CoordinatorContext, share: ICoordinatorShare, block_size: int, attempts_max: int
    ) -> None:
        self._store = context.store
        self._share = share
        self._block_size = block_size
        self._attempts_max = attempts_max
        self._any = share.ids[context.environment.random_bits(COORDINATOR_BITS) % len(share.ids)]
        self._of: dict[int, TransactionIds] = {}
        self._keeps_ready = False

    async def keep_ready(self, count: int) -> None:
        """Reserve a block if fewer than ``count`` ids are left; errors are those of TransactionIds."""
        self._keeps_ready = True
        await (await self._present()).keep_ready(count)

    async def next_id(self) -> TxnID:
        """
        Return an id that was never assigned in any process; errors are those of TransactionIds.

        After ``keep_ready``, ids that were reserved before the coordinators of this host changed are used first. A row
        of the application may keep the store from reserving others at this moment.
        """
        present = await self._present()
        if self._keeps_ready and not present.has_some:
            present = next((one for one in self._of.values() if one.has_some), present)
        return await present.next_id()

    async def _present(self) -> TransactionIds:
        coordinator = min(await self._share.held(), default=self._any)
        if coordinator not in self._of:
            self._of[coordinator] = TransactionIds(self._store, coordinator, self._block_size, self._attempts_max)
        return self._of[coordinator]
