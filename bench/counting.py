"""A metadata store that counts what is written to the one behind it."""

from __future__ import annotations

from collections import Counter

from zope.interface import alsoProvides, implementer, providedBy

from txnframework.interfaces import IAtomicBatchStore, ILease, IMetadataStore, IWatch
from txnframework.model import (
    Batch,
    Expected,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    RecordPage,
)


@implementer(IAtomicBatchStore)
class CountingStore:
    """
    Passes everything on; ``written`` counts the records that were put, by the first part of their keys.

    ``rewritten`` counts those of them that stood before, and were put again with more in them or less.
    """

    def __init__(self, inner: IMetadataStore) -> None:
        if not IAtomicBatchStore.providedBy(inner):
            raise TypeError("this counts for stores with atomic batches")
        # Its other capabilities, too, or it would be used in another way.
        alsoProvides(self, providedBy(inner))
        self.identity = inner.identity
        self.session = inner.session
        self.written: Counter[str] = Counter()
        self.rewritten: Counter[str] = Counter()
        self._inner: IAtomicBatchStore = inner

    def _count(self, write: Put | PutSequential) -> None:
        kind = (write.prefix if isinstance(write, PutSequential) else write.key).path.split("/")[1]
        self.written[kind] += 1
        self.rewritten[kind] += isinstance(write, Put) and isinstance(write.expected, int)

    async def get(self, key: Key) -> Record | None:
        return await self._inner.get(key)

    async def put(self, write: Put) -> int:
        self._count(write)
        return await self._inner.put(write)

    async def delete(self, key: Key, expected: Expected) -> None:
        await self._inner.delete(key, expected)

    async def put_sequential(self, write: PutSequential) -> Key:
        self._count(write)
        return await self._inner.put_sequential(write)

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        for put in batch.puts:
            self._count(put)
        return await self._inner.apply(batch)

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        return await self._inner.scan(keys, items_max)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        return await self._inner.scan_index(entries, items_max)

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        return await self._inner.watch(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        return await self._inner.acquire_lease(name, holder)

    async def close(self) -> None:
        await self._inner.close()
