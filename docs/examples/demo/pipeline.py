"""
The pipeline: `python pipeline.py CONFIG CHECKPOINT NAMESPACE BATCH_ROWS`.

It reads topic `input` of the namespace as a stream, adds a digest to every row, and writes the rows to `enriched` and
some of them to `alerts`. A micro-batch is one transaction over both outputs and the acknowledgment of its input. There
is no code for crashes here: the options `groupId` and `txnAppId` make the pipeline exactly once.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from txnframework_spark.session import LOCAL_CHECKPOINT, spark_session
from txnframework_spark.testing.processes import exit_with_parent


def transform(events: DataFrame, namespace: str) -> DataFrame:
    """Return the rows of both outputs: topic, key and value."""
    digest = f.substring(f.sha2("value", 256), 1, 16)
    row = f.from_json(f.col("value").cast("string"), "line BIGINT, fields MAP<STRING, STRING>")
    parsed = events.select("key", row.alias("row"), digest.alias("digest")).select("key", "row.*", "digest")
    enriched = f.struct(
        f.lit(f"topic://{namespace}/enriched").alias("topic"),
        f.to_json(f.struct("line", "fields", "digest")).alias("value"),
    )
    alert = f.struct(
        f.lit(f"topic://{namespace}/alerts").alias("topic"),
        f.to_json(f.struct("line", f.concat(f.lit("digest "), "digest").alias("reason"))).alias("value"),
    )
    alerts = f.when(f.substring("digest", 1, 1).isin("0", "1"), alert)
    # One pass over the input for both outputs; a union would read it twice.
    outputs = f.explode(f.array_compact(f.array(enriched, alerts))).alias("output")
    value = f.col("output.value").cast("binary").alias("value")
    return parsed.select("key", outputs).select("output.topic", "key", value)


def copy(session: SparkSession, config: str, checkpoint: str, namespace: str, batch_rows: str) -> None:
    """Process all input that exists now."""
    name = namespace.replace("/", "-")
    events = (
        session.readStream.format("txnframework")
        .option("config", config)
        .option("subscribe", f"topic://{namespace}/input")
        .option("groupId", name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
    )
    query = (
        transform(events, namespace)
        .writeStream.format("txnframework")
        .option("config", config)
        .option("txnAppId", name)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(config: str, checkpoint: str, namespace: str, batch_rows: str) -> None:
    exit_with_parent()
    scratch = Path(checkpoint).parent / "spark"
    settings = {
        **LOCAL_CHECKPOINT,
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    scratch.mkdir(exist_ok=True)
    with spark_session(settings, None) as session:
        session.sparkContext.setLogLevel("WARN")
        copy(session, config, checkpoint, namespace, batch_rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
