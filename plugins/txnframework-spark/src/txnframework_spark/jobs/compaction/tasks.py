"""The tasks of a compaction: copying ranges, and writing the sorted copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txnframework.broker import Attempt, Copied, CopyPlan, CopyRange, Host, copies
from txnframework_spark import process
from txnframework_spark.options.stores import StoreOptions

if TYPE_CHECKING:
    from txnframework_spark.jobs.progress import Meter

Batches: TypeAlias = Iterator[pa.RecordBatch]

COPIES: Final = "time_ms bigint, ledger bigint, entry bigint, data binary, messages int"
IN_ORDER: Final = ("time_ms", "ledger", "entry")
WRITTEN: Final = "part int, ledger string, entries bigint, messages bigint, bytes bigint"

_COPY_FIELDS: Final = pa.schema(
    [
        ("time_ms", pa.int64()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("data", pa.binary()),
        ("messages", pa.int32()),
    ]
)
_WRITTEN_FIELDS: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("ledger", pa.string()),
        ("entries", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_BATCH_BYTES: Final = 4 * 1024 * 1024
_RANDOM_BITS: Final = 62


def copying(stores: StoreOptions, plan: CopyPlan, meter: Meter) -> Callable[[Batches], Batches]:
    """Return a function that copies the ranges with the numbers that a task gets."""
    messages, size = meter.messages, meter.bytes

    def copy(numbers: Batches) -> Batches:
        host = process.host(stores)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for found in _pages(host, plan, plan.ranges[number]):
                    messages.add(sum(one.messages for one in found))
                    size.add(sum(len(one.data) for one in found))
                    yield _as_batch(found)

    return copy


def _pages(host: Host, plan: CopyPlan, planned: CopyRange) -> Iterator[list[Copied]]:
    """Yield the copies of a range, page by page."""
    times = process.run(host.compaction.commit_times(plan.segment)) if plan.order == "commit" else None

    async def page() -> list[Copied]:
        taken: list[Copied] = []
        left = _BATCH_BYTES
        async for one in found:
            taken.append(one)
            left -= len(one.data)
            if left <= 0:
                break
        return taken

    with process.entered(aclosing(copies(host.ledgers, planned, plan.aborted, times))) as found:
        while taken := process.run(page()):
            yield taken


def _as_batch(found: list[Copied]) -> pa.RecordBatch:
    columns = [
        pa.array([one.time_ms for one in found], pa.int64()),
        pa.array([one.position.ledger_id for one in found], pa.int64()),
        pa.array([one.position.entry_id for one in found], pa.int64()),
        pa.array([one.data for one in found], pa.binary()),
        pa.array([one.messages for one in found], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_COPY_FIELDS)


def writing(stores: StoreOptions, attempt: Attempt) -> Callable[[Batches], Batches]:
    """Return a function that writes a task's copies to a new ledger and reports it; no ledger without copies.

    Each attempt of a task has its own ledger. The ledger that was reported is listed at the end, others are removed.
    """

    def write(copied: Batches) -> Batches:
        from pyspark import TaskContext

        host = process.host(stores)
        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        filled = (batch for batch in copied if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        part = f"{context.partitionId():06}-{host.environment.random_bits(_RANDOM_BITS):016x}"
        entries = messages = size = 0
        with process.entered(host.compaction.attempts.writing(attempt, part)) as writer:
            for batch in chain((first,), filled):
                datas, counts = batch.column("data").to_pylist(), batch.column("messages").to_pylist()
                process.run(writer.add_all(tuple(zip(datas, counts, strict=True))))
                entries, messages, size = entries + len(datas), messages + sum(counts), size + sum(map(len, datas))
            process.run(writer.seal())
        row = (context.partitionId(), writer.name, entries, messages, size)
        columns = [pa.array([one], field.type) for one, field in zip(row, _WRITTEN_FIELDS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=_WRITTEN_FIELDS)

    return write
