"""Where Spark looks for ``format("txnframework")``: it imports every package named ``pyspark_*`` and takes
DefaultSource.
"""

from __future__ import annotations

from txnframework_spark.datasource import TransactionalDataSource as DefaultSource

__all__ = ["DefaultSource"]
