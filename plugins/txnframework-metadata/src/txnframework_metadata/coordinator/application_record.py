"""The content of an application's record, and its changes; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from txnframework.errors import Fenced
from txnframework.model.bounds import count_newest
from txnframework.model.ids import TxnID
from txnframework.model.positions import Position
from txnframework.model.records import (
    ApplicationOperation,
    ApplicationRecord,
    CommittedBatchDocument,
    SourceRangeDocument,
)
from txnframework.model.transactions import Application, BatchID, CommittedBatch, SourceRange, Transaction
from txnframework_metadata.records.views import StoredOperation

RANGES_MAX: Final = 128
"""
The most ranges, one for each segment of each source, of all batches in a record, if it has more than ``BATCHES_MIN``.

Each batch writes the record several times, so its size adds to the time of every batch.
"""
BATCHES_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many past runs and committed batches a record keeps."""

    past_runs: int
    committed: int


def batch_of(ended: Transaction, operations: Iterable[StoredOperation]) -> tuple[str, CommittedBatchDocument] | None:
    """
    Return the application and the batch that a transaction committed; None if it carries no batch or did not commit it.

    A batch has one operation from its beginning, and one with its ranges, written just before the commit. The latter
    counts.
    """
    if not ended.counts(0):
        return None
    found: ApplicationOperation | None = None
    for operation in operations:
        document = operation.document
        if isinstance(document, ApplicationOperation) and (found is None or document.ranges is not None):
            found = document
    if found is None:
        return None
    batch = CommittedBatchDocument(query=found.query, version=found.version, ranges=found.ranges or [])
    return found.application, batch


def with_outcome(
    record: ApplicationRecord, txn_id: TxnID, batch: CommittedBatchDocument | None, bounds: Bounds
) -> ApplicationRecord:
    """
    Return the record with a batch that ``txn_id`` committed; the same object if the record already contains it.

    A change that made the record name another transaction also stored this outcome. If the outcome is missing from such
    a record, newer ones have replaced it, and it must not be added again as the newest.
    """
    if batch is None:
        return record
    same_query = [known.version for known in record.committed if known.query == batch.query]
    if batch.version in same_query:
        return record
    if record.txn != str(txn_id) and same_query and max(same_query) > batch.version:
        return record
    committed = [*record.committed, batch][-bounds.committed :]
    ranges = [sum(len(source.end) for source in known.ranges) for known in committed]
    return msgspec.structs.replace(record, committed=committed[-count_newest(ranges, RANGES_MAX, BATCHES_MIN) :])


def require_current(record: ApplicationRecord, application: str, run: str) -> None:
    """Raise Fenced if ``run`` is a past run."""
    if run != record.run and run in record.past_runs:
        raise Fenced(f"application {application}", f"run {record.run}")


def require_followed(record: ApplicationRecord, application: str, follows: str | None) -> None:
    """
    Raise Fenced if the record's current run is not ``follows``.

    :param follows: the run that the new run is known to follow, or None.
    """
    if follows is not None and follows != record.run:
        raise Fenced(f"application {application}", f"run {record.run}")


def claimed(record: ApplicationRecord, run: str, bounds: Bounds) -> ApplicationRecord:
    """Return the record after a new run claims it: the previous run becomes a past run, and no transaction is named."""
    past = [*record.past_runs, record.run][-bounds.past_runs :]
    return msgspec.structs.replace(record, run=run, past_runs=past, txn=None)


def begun(record: ApplicationRecord, batch: BatchID, txn_id: TxnID) -> ApplicationRecord:
    """Return the record with ``txn_id`` as the transaction of ``batch``."""
    return msgspec.structs.replace(record, query=batch.query, version=batch.version, txn=str(txn_id))


def require_not_older(record: ApplicationRecord, batch: BatchID) -> None:
    """
    Raise Fenced for a batch that is older than the latest one that the same run began.

    Batches of one run only grow. A lower one comes from an abandoned task, which must not end the current work of its
    own run. A restart from an older checkpoint is another run.
    """
    if record.query == batch.query and batch.version < record.version and record.txn is not None:
        raise Fenced(f"batch {batch.version} of application {batch.application}", f"batch {record.version}")


def operation_of_batch(batch: BatchID, ranges: tuple[SourceRange, ...] | None) -> ApplicationOperation:
    """Return the operation that binds a transaction to a batch."""
    documents = None if ranges is None else [_range_document(source) for source in ranges]
    return ApplicationOperation(
        branch=0,
        application=batch.application,
        run=batch.run,
        query=batch.query,
        version=batch.version,
        ranges=documents,
    )


def application_of(name: str, record: ApplicationRecord) -> Application:
    """Return the record as a value."""
    return Application(
        name,
        record.run,
        tuple(record.past_runs),
        record.query,
        record.version,
        None if record.txn is None else TxnID.parse(record.txn),
        tuple(
            CommittedBatch(known.query, known.version, tuple(map(_range_of, known.ranges)))
            for known in record.committed
        ),
    )


def _range_document(source: SourceRange) -> SourceRangeDocument:
    return SourceRangeDocument(
        topic=source.topic,
        subscription=source.subscription,
        start={segment: str(position) for segment, position in source.start.items()},
        end={segment: str(position) for segment, position in source.end.items()},
    )


def _range_of(document: SourceRangeDocument) -> SourceRange:
    return SourceRange(
        document.topic,
        document.subscription,
        {segment: Position.parse(text) for segment, text in document.start.items()},
        {segment: Position.parse(text) for segment, text in document.end.items()},
    )
