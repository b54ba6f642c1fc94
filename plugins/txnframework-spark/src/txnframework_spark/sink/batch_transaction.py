"""
The transaction of a micro-batch inside a ``foreachBatch`` function, so that several sinks take part in the batch.

The order is: begin, write the topics (staged, not visible), write the other sinks (visible, once for each version),
commit. Crash windows, and what the repeated batch finds:

* Before the other sinks have written: nothing is visible. Everything is written again.
* After they have written, before the commit: they recognise the version and write nothing. The topics are written
  again.
* After the commit, before Spark records the batch: the other sinks as above. The batch is a replay: its transaction is
  aborted, and the call succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txnframework.broker import Host
from txnframework.model.ids import TxnID
from txnframework_spark import process
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.batch import MicroBatch, begin, current_attempt
from txnframework_spark.microbatch.batch import batch_id as named
from txnframework_spark.options.parser import parse_topic
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.acknowledgment import batch_facts, is_ended, mark_ended
from txnframework_spark.sink.branch_writer import layout_of, open_attempt_writer, write_batches
from txnframework_spark.sink.commit import Staged, abort_staged, commit_staged
from txnframework_spark.sink.rows import check_sink_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches: TypeAlias = Iterator[pa.RecordBatch]

_STAGED: Final = "branch string, rows bigint"
_STAGED_FIELDS: Final = pa.schema([("branch", pa.string()), ("rows", pa.int64())])


class BatchTransaction:
    """The open transaction of a micro-batch; ``transaction`` begins and ends it."""

    def __init__(self, host: Host, options: SinkOptions, facts: MicroBatch, txn_id: TxnID) -> None:
        self.id = str(txn_id)
        """The id of the transaction."""
        self._host = host
        self._options = options
        self._facts = facts
        self._txn_id = txn_id
        # Branch 0 counts in every commit: it holds the acknowledgments.
        self._staged = [self._message(0, 0)]

    @property
    def options(self) -> dict[str, str]:
        """``txnAppId`` and ``txnVersion`` for a sink that writes each version once, as ``txn_options`` returns them."""
        return {"txnAppId": self._facts.query, "txnVersion": str(self._facts.batch)}

    def write(self, rows: DataFrame, topic: str | None = None) -> int:
        """
        Write rows in the transaction; they become visible with its commit.

        The columns are those of the sink. It may be called several times, also for one topic. Each attempt of a task
        writes under its own branch, and the commit lists those that returned.

        :param topic: the topic; None: each row names it in column ``topic``.
        :returns: the number of rows.
        :raises TopicMissing: the topic does not exist.
        :raises Unsupported: the sink does not accept a column.
        """
        options = replace(self._options, topic=None if topic is None else parse_topic("topic", topic))
        check_sink_columns(rows.schema, options.topic is not None)
        if options.topic is not None:
            process.run(layout_of(self._host, options.topic))
        application = self._application
        task = _staging(options, self._txn_id, f"{application}/{self._facts.batch}/{len(self._staged)}")
        found = rows.mapInArrow(task, _STAGED).collect()
        self._staged += [self._message(int(row["branch"]), row["rows"]) for row in found]
        return sum(row["rows"] for row in found)

    def commit(self) -> None:
        """Acknowledge what the batch has read, and commit; or return normally if it was committed before."""
        process.run(commit_staged(self._host, self._options, self._staged, self._facts.batch))

    def abort(self) -> None:
        """Abort the transaction, unless it has ended."""
        process.run(abort_staged(self._host, self._staged))

    @property
    def _application(self) -> str:
        return self._options.application_id or self._facts.query

    def _message(self, branch: int, rows: int) -> Staged:
        return Staged(self.id, branch, rows, self._facts, self._application)


@contextmanager
def transaction(batch: DataFrame, batch_id: int, **options: str) -> Iterator[BatchTransaction]:
    """
    Begin the transaction of a micro-batch in a ``foreachBatch`` function, and commit it at the end of the block.

    The block writes topics with ``BatchTransaction.write``, and other sinks that write each version once. The commit
    makes the topics visible, and acknowledges what the batch has read of every subscription (``groupId``). An error in
    the block aborts the transaction. If the batch is repeated, its topics are dropped if they were committed before.

    The block must compute the DataFrame, because its tasks register the ranges that they read.

    :param options: those of ``writeStream``, such as the stores and ``txnAppId``; not ``topic`` and ``transactional``.
    :raises BatchNotCommitted: the transaction has ended during the batch; nothing of the topics counts.
    :raises Fenced: a newer run took over; nothing of the topics counts.
    :raises Diverged: checkpoint and subscription contradict each other; nothing of the topics counts.
    :raises Unsupported: the caller is not a ``foreachBatch`` function, or the batch has a transaction already. A second
        one would be taken for a repetition of the first one, and its rows would be dropped.
    """
    facts = batch_facts(batch, batch_id)
    if is_ended(batch, facts):
        raise Unsupported(
            f"batch {batch_id} has a transaction already, or was acknowledged; write all topics in one"
            " transaction() block, which also acknowledges the batch"
        )
    parsed = SinkOptions.of_stream(options)
    if parsed.topic is not None or not parsed.transactional:
        raise Unsupported("transaction() accepts neither topic, which write() names, nor transactional=false")
    host = process.host(parsed.stores)
    this = named(parsed.application_id or facts.query, facts)
    txn_id = process.run(retry_unavailable(host, lambda: begin(host, this, parsed.transaction_timeout_ms)))
    opened = BatchTransaction(host, parsed, facts, txn_id)
    mark_ended(batch, facts)
    try:
        yield opened
        opened.commit()
    except BaseException:
        # Also after a commit with an unknown outcome, as Spark does with a sink; a committed one stays committed.
        opened.abort()
        mark_ended(batch, None)
        raise


def _staging(options: SinkOptions, txn_id: TxnID, name: str) -> Callable[[Batches], Batches]:
    """Return a task that writes its rows under a branch of its own, and returns the branch when they are durable."""

    def stage(batches: Batches) -> Batches:
        partition, _ = current_attempt()
        writer, branch = open_attempt_writer(process.host(options.stores), options, txn_id, f"{name}/{partition}")
        write_batches(writer, batches)
        yield pa.RecordBatch.from_pylist([{"branch": str(branch), "rows": writer.rows}], _STAGED_FIELDS)

    return stage
