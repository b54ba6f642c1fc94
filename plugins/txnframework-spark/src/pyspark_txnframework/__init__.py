"""Where Spark looks for ``format("txnframework")``: it imports every package named ``pyspark_*`` and takes
DefaultSource.

``acknowledge`` and ``txn_options`` are for functions of ``foreachBatch``, whose output is no topic.
"""

from __future__ import annotations

from txnframework_spark.datasource import TransactionalDataSource as DefaultSource
from txnframework_spark.sink.acknowledging import acknowledge, txn_options

__all__ = ["DefaultSource", "acknowledge", "txn_options"]
