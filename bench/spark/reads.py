"""Reading a topic in batch over reading the same rows from Parquet: rows per second, every value touched."""

from __future__ import annotations

import time
from collections.abc import Callable

from measurement import Found, Target
from pyspark.sql import DataFrame
from stage import Stage

AGGREGATE = "sum(length(key) + length(value)) as bytes", "sum(crc32(key)) as keys", "sum(crc32(value)) as checksum"


def reading_over_parquet(stage: Stage) -> list[Found]:
    """Key and value by name, because Spark prunes unused columns of Parquet and cannot prune those of a topic."""
    ratios, notes = _compare(stage, "key binary, value binary")
    return [Found("rows per second of a topic / of Parquet, key and value", ratios, Target(0.4, False), notes)]


def all_columns_over_parquet(stage: Stage) -> list[Found]:
    """The same without naming columns: topic, segment, offset and timestamp are produced but not used."""
    ratios, notes = _compare(stage, None)
    return [Found("rows per second of a topic / of Parquet, all columns", ratios, None, notes)]


def _compare(stage: Stage, schema: str | None) -> tuple[tuple[float, ...], dict[str, float | str]]:
    files = stage.parquet(stage.rows)
    topic = stage.topic(stage.rows)

    def from_topic() -> DataFrame:
        reader = stage.spark.read.format("txnframework").options(**stage.stores, topic=topic)
        return (reader if schema is None else reader.schema(schema)).load()

    took: list[float] = []
    took_files: list[float] = []
    for number in range(stage.rounds + 1):
        stage.progress(f"round {number} of {stage.rounds}")
        ours, found = _timed(from_topic)
        theirs, expected = _timed(lambda: files)
        if found != expected:
            raise RuntimeError(f"the topic has other rows than the files: {found}, {expected}")
        if number:
            took.append(ours)
            took_files.append(theirs)
    notes = {
        "rows": stage.rows,
        "rows_per_s": round(stage.rows / min(took)),
        "parquet_rows_per_s": round(stage.rows / min(took_files)),
    }
    return tuple(theirs / ours for ours, theirs in zip(took, took_files, strict=True)), notes


def _timed(frame: Callable[[], DataFrame]) -> tuple[float, object]:
    begun = time.perf_counter()
    found = frame().selectExpr(*AGGREGATE).collect()
    return time.perf_counter() - begun, found
