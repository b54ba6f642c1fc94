"""State of the user's own, by ``transformWithState``: its workers need what PySpark does not bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_transform_with_state_counts_across_batches(spark: SparkSession, stores: Any, run_available: Any) -> None:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counts(StatefulProcessor):
        """How many rows each key has had."""

        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "number bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            before = self._count.get()[0] if self._count.exists() else 0
            count = before + sum(len(one) for one in rows)
            self._count.update((count,))
            yield pd.DataFrame({"value": [f"{key[0]} {count}"]})

    def counted(frame: DataFrame) -> DataFrame:
        grouped = frame.selectExpr("split(cast(value AS string), ' ')[0] AS name").groupBy("name")
        return grouped.transformWithStateInPandas(Counts(), "value string", "Append", "None")

    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    sink = {"topic": "out", "txnAppId": "app", "txnAppStateful": "true"}
    try:
        for values in (["a 1", "a 2", "b 1"], ["a 3"]):
            stores.publish(values)
            run_available(counted, sink=sink)
    finally:
        spark.conf.set(PROVIDER, before)
    assert stores.read() == {"a 2": 1, "b 1": 1, "a 3": 1}
