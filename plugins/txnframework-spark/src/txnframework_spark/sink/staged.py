"""What a write task tells the driver when it has succeeded."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from txnframework.model.ids import TxnID


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one successful task attempt wrote: all of it is durable under ``branch`` of ``txn`` and counts if listed."""

    application: str
    query: str
    run: str
    batch: int
    txn: str
    branch: int
    partition: int
    attempt: int
    rows: int

    @property
    def txn_id(self) -> TxnID:
        """The transaction, as an id."""
        return TxnID.parse(self.txn)
