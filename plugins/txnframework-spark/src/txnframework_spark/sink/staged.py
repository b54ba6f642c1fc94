"""The message of a successful write task to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from txnframework.model.ids import TxnID
from txnframework_spark.microbatch.tasks import BatchFacts


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The output of one successful task attempt: durable under ``branch`` of ``txn``, and it counts if listed.

    ``txn`` None: written without a transaction, or nothing was written. ``batch``, ``application``: of a stream.
    """

    txn: str | None
    branch: int
    rows: int
    batch: BatchFacts | None = None
    application: str | None = None

    @property
    def txn_id(self) -> TxnID | None:
        """The id of the transaction."""
        return None if self.txn is None else TxnID.parse(self.txn)
