"""Writes without transactions: at least once, and never for a source that acknowledges."""

from __future__ import annotations

from txnframework.interfaces import IMetadataStore
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.registration import readings_of
from txnframework_spark.microbatch.tasks import BatchFacts


async def require_no_acknowledgments(store: IMetadataStore, batch: BatchFacts) -> None:
    """Raise Unsupported if the batch reads a subscription: it would never be acknowledged."""
    for reading in await readings_of(store, batch):
        raise Unsupported(
            f"subscription {reading.subscription} of {reading.topic} is acknowledged in the sink's transaction, and"
            " with transactional=false there is none: leave out groupId, so that the checkpoint alone decides what is"
            " read, or leave out transactional=false"
        )
