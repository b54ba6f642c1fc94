"""Writes and index queries of a metadata store, under the names of PIP-473."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, TypeVar

from txnframework.broker._measuring.passing import Passing
from txnframework.broker._measuring.results import CONFLICT, OK, header_cas, result_of
from txnframework.interfaces import IAtomicBatchStore, IMetadataStore
from txnframework.model.metadata import Batch, IndexRange, Key, Put, PutSequential, Record, RecordPage
from txnframework.model.paths import is_header, is_operation

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

T = TypeVar("T")


class MeasuredMetadataStore(Passing):
    """Counts what is written of transactions, and times index queries."""

    _behind: IAtomicBatchStore

    def __init__(self, behind: IMetadataStore, metrics: Metrics) -> None:
        super().__init__(behind)
        self._operations = metrics.counter(
            "pulsar_txn_metadata_store_op_writes_total", "Operation records of transactions that were written."
        )
        self._decisions = header_cas(metrics)
        self._queries = metrics.histogram(
            "pulsar_txn_metadata_store_index_query_seconds", "Time until a page of a secondary index was there."
        )

    async def put(self, write: Put) -> int:
        """Write a record, counted."""
        return await self._counted((write,), self._behind.put(write))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number, counted."""
        return await self._counted((write,), self._behind.put_sequential(write))

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply a batch, its writes counted."""
        return await self._counted(batch.puts, self._behind.apply(batch))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of an index, timed."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        page = await self._behind.scan_index(entries, items_max)
        self._queries.observe(clock() - began_s)
        return page

    async def _counted(self, writes: Iterable[Put | PutSequential], call: Awaitable[T]) -> T:
        headers = sum(isinstance(one, Put) and isinstance(one.expected, int) and is_header(one.key) for one in writes)
        try:
            answer = await call
        except BaseException as error:
            if headers:
                self._decisions.labels(result_of(error, CONFLICT)).inc(headers)
            raise
        if headers:
            self._decisions.labels(OK).inc(headers)
        operations = sum(is_operation(one.prefix if isinstance(one, PutSequential) else one.key) for one in writes)
        if operations:
            self._operations.inc(operations)
        return answer


def measured_store(store: IMetadataStore, metrics: Metrics | None) -> IMetadataStore:
    """Return ``store``, measured where there is a ``Metrics``."""
    return store if metrics is None else IMetadataStore(MeasuredMetadataStore(store, metrics))
