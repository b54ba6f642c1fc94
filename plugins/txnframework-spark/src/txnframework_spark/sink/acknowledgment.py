"""Acknowledgment of a micro-batch that another sink has written: the last line of a ``foreachBatch`` function.

It commits like our own sink, in a transaction without rows. So if a batch is replayed, its acknowledgments are found to
be committed already. A run that was fenced by a newer one acknowledges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txnframework.broker import Host
from txnframework_spark import process
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.batch import MicroBatch, begin
from txnframework_spark.microbatch.batch import batch_id as named
from txnframework_spark.microbatch.registration import load_registrations
from txnframework_spark.options.parser import STORE_OPTIONS, OptionParser
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.commit import Staged, commit_staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ENDED: Final = "txnframework.batchEnded"
_ONLY_THERE: Final = (
    "call this only in a foreachBatch function, with the DataFrame and the batch id that Spark passes to it"
)


def acknowledge(batch: DataFrame, batch_id: int, **stores: str) -> bool:
    """
    Acknowledge the messages that a micro-batch has read from every subscription (``groupId``), in one transaction.

    Call it when everything that the batch writes is durable. If the process is killed before the call returns, the
    batch is repeated under the same query and number, so the caller's writes must be idempotent. The DataFrame must
    have been computed before, because its tasks register the ranges that they read. Otherwise nothing is acknowledged.

    :param stores: ``config``, or ``metadata`` and ``ledger``, as for the source.
    :returns: False if nothing was read of a subscription.
    :raises Fenced: a newer run has taken the subscription over; nothing was acknowledged.
    :raises Diverged: the subscription was moved by a seek since the batch was planned; nothing was acknowledged.
    :raises Unsupported: the caller is not a ``foreachBatch`` function.
    """
    facts = batch_facts(batch, batch_id)
    options = SinkOptions(OptionParser(stores, STORE_OPTIONS, "acknowledge").stores())
    host = process.host(options.stores)
    acknowledged = process.run(acknowledge_batch(host, options, facts))
    if acknowledged:
        mark_ended(batch, facts)
    return acknowledged


def txn_options(batch: DataFrame, batch_id: int) -> dict[str, str]:
    """
    Return ``txnAppId`` and ``txnVersion`` of a micro-batch, for a sink that writes each version of an application once.

    The application id is the query id. A new query counts its batches from 0 again. Under an application name that
    outlives the query, a sink would mistake its first batches for committed ones and drop them.

    :raises Unsupported: the caller is not a ``foreachBatch`` function.
    """
    return {"txnAppId": batch_facts(batch, batch_id).query, "txnVersion": str(batch_id)}


async def acknowledge_batch(host: Host, options: SinkOptions, facts: MicroBatch) -> bool:
    """Acknowledge the ranges that the tasks of a batch have registered; return False if there are none."""
    if not await retry_unavailable(host, lambda: load_registrations(host.metadata, facts)):
        return False
    # The application is the query: it is as old as the checkpoint, which determines the batch's range.
    batch = named(facts.query, facts)
    txn_id = await retry_unavailable(host, lambda: begin(host, batch, options.transaction_timeout_ms))
    await commit_staged(host, options, [Staged(str(txn_id), 0, 0, facts, facts.query)], facts.batch)
    return True


def is_ended(batch: DataFrame, facts: MicroBatch) -> bool:
    """Return whether this call of the function has begun or ended the transaction of the batch already."""
    found: str | None = batch.sparkSession.sparkContext.getLocalProperty(_ENDED)
    return found == _named(facts)


def mark_ended(batch: DataFrame, facts: MicroBatch | None) -> None:
    """
    Remember that the batch has a transaction; None: it has none, because the transaction was aborted.

    The mark is a property of the query's thread. A later batch has another name, and a repeated batch another run.
    """
    batch.sparkSession.sparkContext.setLocalProperty(_ENDED, "" if facts is None else _named(facts))


def _named(facts: MicroBatch) -> str:
    return f"{facts.run}/{facts.batch}"


def batch_facts(batch: DataFrame, batch_id: int) -> MicroBatch:
    """Return query, run and number of the micro-batch of a ``foreachBatch`` function; Unsupported elsewhere."""
    from pyspark.errors import PySparkException

    try:
        context = batch.sparkSession.sparkContext
    except PySparkException as error:
        raise Unsupported(
            f"{_ONLY_THERE}; it does not work over Spark Connect, where such a function runs in another process"
        ) from error
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    # Spark uses the run as the job group of a query's jobs, to cancel them when the query stops.
    run = context.getLocalProperty("spark.jobGroup.id")
    if query is None or run is None or number is None or int(number) != batch_id:
        raise Unsupported(_ONLY_THERE)
    return MicroBatch(query, run, batch_id)
