"""A micro-batch is one span, in the Python process of Spark that commits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework_spark.testing.pipelines import WAIT_S
from txnframework_spark.testing.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBSERVER = "[observers.opentelemetry]\nmetrics = false\n"


def test_the_span_of_a_micro_batch(spark: SparkSession, stores: Stores, spans: Path) -> None:
    """It begins before the first message is sent, in another process, and has the batch and its transaction."""
    config = stores.directory / "traced.toml"
    config.write_text("".join(f'[{one}]\nurl = "{stores.url}"\n' for one in ("metadata", "ledger")) + OBSERVER)
    stores.publish(["a", "b", "c"])
    given = {"config": str(config), "subscribe": "in", "groupId": "g", "startingOffsets": "earliest"}
    rows = spark.readStream.format("txnframework").options(**given).load().select("key", "value")
    query = (
        rows.writeStream.format("txnframework")
        .options(config=str(config), topic="out", txnAppId="app", checkpointLocation=str(stores.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    found = [json.loads(line) for line in spans.read_text(encoding="utf-8").splitlines()]
    (batch,) = [one for one in found if one["name"] == "batch"]
    assert batch["txnframework.batch"] == f"app {query.id} 0"
    (end,) = [one for one in found if one["name"] == "end"]
    transaction = end["txnframework.transaction.id"]
    assert batch["txnframework.transaction.id"] == transaction
    assert (end["txnframework.action"], "error.type" in batch) == ("commit", False)
    begins = [one for one in found if one["name"] == "begin" and one.get("txnframework.transaction.id") == transaction]
    assert begins
    assert batch["pid"] == end["pid"]
    assert batch["pid"] not in {one["pid"] for one in begins}
    assert batch["end_ns"] >= end["start_ns"]
    # The transaction's time has milliseconds.
    assert min(one["start_ns"] for one in begins) // 1_000_000 <= batch["start_ns"] // 1_000_000 < end["start_ns"]
