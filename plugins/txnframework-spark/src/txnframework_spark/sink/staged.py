"""What a write task tells the driver when it has succeeded."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from txnframework.model.ids import TxnID
from txnframework_spark.microbatch.tasks import BatchFacts


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one successful task attempt wrote: all of it is durable under ``branch`` of ``txn`` and counts if listed.

    ``txn`` None: it was written without a transaction, or nothing was. ``batch``, ``application``: of a stream.
    """

    txn: str | None
    branch: int
    rows: int
    batch: BatchFacts | None = None
    application: str | None = None

    @property
    def txn_id(self) -> TxnID | None:
        """The transaction, as an id."""
        return None if self.txn is None else TxnID.parse(self.txn)
