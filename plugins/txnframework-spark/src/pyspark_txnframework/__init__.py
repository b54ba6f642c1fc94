"""Entry point for ``format("txnframework")``: Spark imports every package named ``pyspark_*`` and uses its
DefaultSource.

``transaction``, ``acknowledge`` and ``txn_options`` are for ``foreachBatch`` functions.
"""

from __future__ import annotations

from txnframework_spark.datasource import TransactionalDataSource as DefaultSource
from txnframework_spark.sink.acknowledgment import acknowledge, txn_options
from txnframework_spark.sink.batch_transaction import transaction

__all__ = ["DefaultSource", "acknowledge", "transaction", "txn_options"]
