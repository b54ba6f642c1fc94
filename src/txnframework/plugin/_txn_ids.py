"""
Transaction ids that never repeat: reserved in blocks, so that beginning does not contend on a counter.

For coordinators of every family: whether a ledger belongs to a metadata store is told by what was reserved there.
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
    The ids of one coordinator, as this process gives them out: one by one within a block reserved by compare-and-set.

    A block is lost when its reservation's outcome is unknown, when the call is cancelled and when the process dies:
    numbers are plenty, and an id must never be given twice.
    """

    def __init__(self, store: IMetadataStore, coordinator: int, block_size: int, attempts_max: int) -> None:
        self._store = store
        self._coordinator = coordinator
        self._block_size = block_size
        self._attempts_max = attempts_max
        self._lock = asyncio.Lock()
        self._next = self._stop = 0

    async def next_id(self) -> TxnID:
        """
        Return an id that no process was ever given.

        :raises Unavailable: no block could be reserved; trying again may help.
        """
        async with self._lock:
            if self._next >= self._stop:
                self._next, self._stop = await self._reserve()
            number = self._next
            self._next += 1
        return TxnID(self._coordinator, number)

    async def _reserve(self) -> tuple[int, int]:
        """Return the first number of a block that is now this process's own, and the number after its last."""
        key = ids_key(self._coordinator)
        for _ in range(self._attempts_max):
            record = await self._store.get(key)
            start = _FIRST_NUMBER if record is None else decode(IdBlock, record).next
            stop = start + self._block_size
            expected = Expect.ABSENT if record is None else record.version
            try:
                await self._store.put(Put(key, encode(IdBlock(next=stop)), expected))
            except (VersionMismatch, OutcomeUnknown):
                # Unknown: the block may be reserved, by us or, had we lost, by another with the same numbers. Nobody
                # can tell, so it is abandoned.
                continue
            return start, stop
        raise Unavailable(f"no transaction ids could be reserved in {self._attempts_max} attempts")


class SharedTransactionIds:
    """
    The ids of the coordinators that this host holds, so that hosts do not meet at one counter.

    A host that holds none begins at any of them: its ids are as good, it only meets others when it reserves a block.
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

    async def next_id(self) -> TxnID:
        """Return an id that no process was ever given; raises as TransactionIds does."""
        coordinator = min(await self._share.held(), default=self._any)
        if coordinator not in self._of:
            self._of[coordinator] = TransactionIds(self._store, coordinator, self._block_size, self._attempts_max)
        return await self._of[coordinator].next_id()
