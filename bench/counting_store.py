"""A metadata store that counts the writes to another one."""

from __future__ import annotations

from collections import Counter

from txnframework.broker import ForwardingProxy
from txnframework.interfaces import IAtomicBatchStore, IMetadataStore
from txnframework.model import Batch, Key, Put, PutSequential, Record


class CountingStore(ForwardingProxy):
    """
    Forwards every call. ``written`` counts the records that were put, by the first part of their keys.

    ``rewritten`` counts those of them that replaced an earlier version. No ledger is beside this store, so that every
    record goes through it; an intent that is one step with an entry is one record, too.
    """

    location = object()

    _behind: IAtomicBatchStore

    def __init__(self, behind: IMetadataStore) -> None:
        super().__init__(behind)
        self.written: Counter[str] = Counter()
        self.rewritten: Counter[str] = Counter()

    def _count(self, write: Put | PutSequential) -> None:
        kind = (write.prefix if isinstance(write, PutSequential) else write.key).path.split("/")[1]
        self.written[kind] += 1
        self.rewritten[kind] += isinstance(write, Put) and isinstance(write.expected, int)

    async def put(self, write: Put) -> int:
        self._count(write)
        return await self._behind.put(write)

    async def put_sequential(self, write: PutSequential) -> Key:
        self._count(write)
        return await self._behind.put_sequential(write)

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        for put in batch.puts:
            self._count(put)
        return await self._behind.apply(batch)
