"""Entry point for ``format("txnframework")``: Spark imports every package named ``pyspark_*`` and uses its
DefaultSource.

``acknowledge`` and ``txn_options`` are for ``foreachBatch`` functions that do not write to a topic.
"""

from __future__ import annotations

from txnframework_spark.datasource import TransactionalDataSource as DefaultSource
from txnframework_spark.sink.acknowledgment import acknowledge, txn_options

__all__ = ["DefaultSource", "acknowledge", "txn_options"]
