"""A pipeline as a program: ``python pipeline.py STORES CHECKPOINT``; copies topic ``in`` to topic ``out``."""

from __future__ import annotations

import sys

from txnframework_spark.session import require_this_interpreter


def main(url: str, checkpoint: str) -> None:
    require_this_interpreter()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("txnframework")
        .options(metadata=url, subscribe="in", startingOffsets="earliest", groupId="g", maxOffsetsPerTrigger="20")
        .load()
        .select("key", "value")
    )
    query = (
        frame.writeStream.format("txnframework")
        .options(metadata=url, topic="out", txnAppId="app", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
