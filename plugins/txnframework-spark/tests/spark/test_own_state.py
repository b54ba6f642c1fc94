"""State of the user's own, by ``transformWithState``: its workers need what PySpark does not bring."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.testing.pipelines import WAIT_S
from txnframework_spark.testing.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.set(PROVIDER, before)


@pytest.fixture
def run(spark: SparkSession) -> Callable[[Stores], None]:
    """Return what counts the rows of each name in stores, until everything is read."""
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

    def run_one(stores: Stores) -> None:
        source = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest", "groupId": "g"}
        rows = spark.readStream.format("txnframework").options(**source).load()
        grouped = rows.selectExpr("split(cast(value AS string), ' ')[0] AS name").groupBy("name")
        query = (
            grouped.transformWithStateInPandas(Counts(), "value string", "Append", "None")
            .writeStream.format("txnframework")
            .options(metadata=stores.url, topic="out", txnAppId="app", txnAppStateful="true")
            .option("checkpointLocation", str(stores.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()

    return run_one


@pytest.mark.usefixtures("rocksdb")
def test_transform_with_state_counts_across_batches_and_kills(
    stores: Stores, run: Callable[[Stores], None], tmp_path: Path
) -> None:
    """Killed after a batch was committed, before Spark records it; and after its state is stored, before the commit."""
    stores.publish(["a 1", "a 2", "b 1"])
    run(stores)
    stores.publish(["a 3"])
    undecided = Stores(tmp_path / "undecided", f"sqlite:///{tmp_path}/undecided/txn.db")
    undecided.directory.mkdir()
    with closing(sqlite3.connect(tmp_path / "txn.db")) as given, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        given.backup(copy)
    (tmp_path / "copy").rename(undecided.directory / "txn.db")
    run(stores)
    assert stores.read() == {"a 2": 1, "b 1": 1, "a 3": 1}

    shutil.copytree(stores.checkpoint, undecided.checkpoint)
    for killed, seen in ((stores, {"a 2": 1, "b 1": 1, "a 3": 1}), (undecided, {"a 2": 1, "b 1": 1})):
        killed.forget_last_batch()
        assert killed.read() == seen
        killed.publish(["a 4"])
        run(killed)
        assert killed.read() == {"a 2": 1, "b 1": 1, "a 3": 1, "a 4": 1}
