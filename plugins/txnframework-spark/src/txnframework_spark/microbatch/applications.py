"""The sink's use of the application record: one transaction for each micro-batch, shared by all its tasks."""

from __future__ import annotations

from txnframework.broker import Host
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.transactions import BatchID
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.tasks import BatchFacts


async def coordinator_of(host: Host) -> IApplicationCoordinator:
    """Return the coordinator of scalable topics, or raise Unsupported if it keeps no application records."""
    coordinator = await host.coordinator("segment")
    if not IApplicationCoordinator.providedBy(coordinator):
        raise Unsupported(
            "the coordinator that domains.segment.coordinator names keeps no application records, which a Spark sink"
            " needs to commit a batch exactly once; use coordinator metadata"
        )
    return coordinator


def batch_id(application: str, facts: BatchFacts, follows: str | None = None) -> BatchID:
    """Return the coordinator's id of the batch."""
    return BatchID(application, facts.query, facts.run, facts.batch, follows)


async def current_run(host: Host, application: str) -> str:
    """Return the current run of the application; empty if it has none."""
    found = await (await coordinator_of(host)).application(application)
    return "" if found is None else found.run


async def begin(host: Host, batch: BatchID, timeout_ms: int) -> TxnID:
    """
    Claim the application for the batch's run, if necessary, and return the batch's open transaction.

    The call is idempotent: the first task begins the transaction, and other tasks find it. A caller may repeat the call
    after an unknown outcome.

    :raises Fenced: a newer run of the application has begun; this run must stop.
    """
    return (await (await coordinator_of(host)).begin_batch(batch, timeout_ms)).txn_id
