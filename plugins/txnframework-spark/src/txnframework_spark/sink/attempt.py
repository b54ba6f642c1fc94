"""One attempt of one write task, of a stream or of a batch job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from txnframework.broker import Host
from txnframework.model.ids import BRANCH_BITS, Branch, TxnID
from txnframework_spark import process
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.staging import BranchWriter

if TYPE_CHECKING:
    import pyarrow as pa


def attempt_writer(host: Host, options: SinkOptions, txn_id: TxnID | None, name: str) -> tuple[BranchWriter, int]:
    """Return the writer of a new attempt and its branch number; ``txn_id`` None: outside of transactions."""
    # Random, because attempt numbers start over when a batch is replayed.
    number = host.environment.random_bits(BRANCH_BITS) | 1
    branch = None if txn_id is None else Branch(txn_id, number)
    return BranchWriter(host, options, branch, f"spark/{name}/{number:016x}"), number


def write_all(
    writer: BranchWriter, batches: Iterator[pa.RecordBatch], halfway: Callable[[], None] | None = None
) -> None:
    """
    Write the task's input and return when all of it is durable.

    An attempt that fails leaves entries under a branch that no commit lists; they need no further step to be aborted.
    ``halfway`` is called once, when half of the first rows are durable.
    """
    try:
        for rows in batches:
            if halfway is None or not rows.num_rows:
                process.run(writer.write(rows))
                continue
            half = (rows.num_rows + 1) // 2
            process.run(writer.write(rows.slice(0, half)))
            process.run(writer.finish())
            halfway()
            halfway = None
            process.run(writer.write(rows.slice(half)))
        process.run(writer.finish())
    except BaseException:
        process.run(writer.cancel())
        raise
