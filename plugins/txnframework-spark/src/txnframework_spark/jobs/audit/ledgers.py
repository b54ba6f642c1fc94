"""The checks of an audit that concern single ledgers, on Spark: gaps, counts, and changes since an earlier audit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from txnframework_spark.jobs.audit.checks import findings
from txnframework_spark.jobs.audit.deployment import Deployment
from txnframework_spark.jobs.audit.report import AuditFinding, LedgerReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATED: Final = "name string, ledger bigint, stated_entries bigint, stated_messages bigint, stated_bytes bigint"
_HASHED_TOGETHER: Final = 10_000
"""The entries whose hashes are hashed together, so that a task holds a part of a ledger only."""


def stated_ledgers(spark: SparkSession, deployment: Deployment, gone: Collection[tuple[str, int]]) -> DataFrame:
    """Return what the ledgers state that are not gone; the messages of log-driven topics include markers: null."""
    counted = {*deployment.ends, *(name for one in deployment.kept.values() for name in one.ledgers)}
    rows = [
        (name, ledger, one.entries, one.messages if name in counted else None, one.bytes)
        for (name, ledger), one in deployment.ledgers.items()
        if (name, ledger) not in gone
    ]
    return spark.createDataFrame(rows, _STATED)


def missing_entries(entries: DataFrame, stated: DataFrame) -> DataFrame:
    """Return the ranges of entries that are missing."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ends = stated.select("name", "ledger", f.explode(f.array(f.lit(-1), "stated_entries")).alias("entry"))
    there = entries.select("name", "ledger", "entry").join(stated, ["name", "ledger"], "left_semi").union(ends)
    first = f.lag("entry").over(Window.partitionBy("name", "ledger").orderBy("entry")) + 1
    gaps = there.withColumns({"first": first, "last": f.col("entry") - 1}).where("first <= last")
    detail = f.when(f.col("first") == f.col("last"), "the entry is missing").otherwise(
        f.format_string("entries %d to %d are missing", "first", "last")
    )
    return findings(gaps.withColumn("entry", f.col("first")), f.lit("missing-entry"), detail)


def damaged_entries(entries: DataFrame) -> DataFrame:
    """Return the entries that are damaged themselves."""
    from pyspark.sql import functions as f

    return findings(entries.where("damage IS NOT NULL"), f.lit("damaged-entry"), f.col("damage"))


def counted_ledgers(entries: DataFrame, stated: DataFrame) -> list[dict[str, Any]]:
    """Return the ledgers that have entries, with what was counted and what is stated."""
    from pyspark.sql import functions as f

    counts = entries.groupBy("name", "ledger").agg(
        f.count("entry").alias("entries"),
        f.coalesce(f.sum("messages"), f.lit(0)).alias("messages"),
        f.coalesce(f.sum("bytes"), f.lit(0)).alias("bytes"),
        f.count("damage").alias("damages"),
    )
    # A ledger of which a piece is gone is in no report.
    joined = counts.join(stated, ["name", "ledger"]).join(hashes(entries), ["name", "ledger"], "left")
    return [row.asDict() for row in joined.orderBy("name", "ledger").collect()]


def hashes(entries: DataFrame) -> DataFrame:
    """Return the hash of each ledger, which depends on its entries only, and the number of the entries."""
    from pyspark.sql import functions as f

    def hashed(order: str) -> Any:
        inner = f.array_sort(f.collect_list(f.struct(order, "hash")))
        return f.sha2(f.array_join(inner["hash"], ""), 256).alias("hash")

    part = f.floor(f.col("entry") / _HASHED_TOGETHER).alias("part")
    readable = entries.where("hash IS NOT NULL")
    parts = readable.groupBy("name", "ledger", part).agg(hashed("entry"), f.count("entry").alias("hashed"))
    return parts.groupBy("name", "ledger").agg(hashed("part"), f.sum("hashed").alias("hashed"))


def wrong_counts(ledgers: Sequence[dict[str, Any]]) -> list[AuditFinding]:
    """Return the ledgers whose entries do not add up to what the ledger states, except the damaged ones."""
    return [
        AuditFinding(
            "wrong-count", one["name"], one["ledger"], detail=f"its entries have {one[what]} {what} instead of {stated}"
        )
        for one in ledgers
        if not one["damages"] and one["entries"] == one["stated_entries"]
        for what in ("bytes", "messages")
        if (stated := one[f"stated_{what}"]) is not None and one[what] != stated
    ]


def changed_ledgers(
    spark: SparkSession,
    entries: DataFrame,
    earlier: Sequence[LedgerReport],
    deployment: Deployment,
    gone: Collection[tuple[str, int]],
) -> list[AuditFinding]:
    """
    Return the ledgers whose earlier entries have changed.

    A ledger that is not there was trimmed or deleted, unless an older one of the same name is left. Those that are gone
    since they were listed are not compared.
    """
    from pyspark.sql import functions as f

    compared = [one for one in earlier if (one.name, one.ledger) in deployment.ledgers]
    compared = [one for one in compared if (one.name, one.ledger) not in gone]
    lost = [
        AuditFinding("changed-ledger", one.name, one.ledger, detail=f"its {one.entries} entries are missing")
        for one in earlier
        if (one.name, one.ledger) not in deployment.ledgers and deployment.has_older_ledger(one.name, one.ledger)
    ]
    before = spark.createDataFrame(
        [(one.name, one.ledger, one.entries, one.hash) for one in compared],
        "name string, ledger bigint, earlier_entries bigint, earlier_hash string",
    )
    place = ["name", "ledger"]
    same = entries.join(before, place).where(f.col("entry") < f.col("earlier_entries"))
    now = before.join(hashes(same), place, "left").fillna(0, "hashed").fillna("", "hash")
    changed = now.where("hashed != earlier_entries OR hash != earlier_hash").collect()
    return lost + [
        AuditFinding(
            "changed-ledger",
            row["name"],
            row["ledger"],
            detail=f"its first {row['earlier_entries']} entries had hash {row['earlier_hash']}, and now"
            f" {row['hashed']} of them have another one",
        )
        for row in changed
    ]
