"""The checks of an audit that compare what many tasks read, on Spark: transactions, and compacted copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txnframework.broker import EVERYTHING, Host
from txnframework.model import paths, records
from txnframework.model.ids import TxnID
from txnframework.model.metadata import KeyRange
from txnframework_spark import process
from txnframework_spark.jobs.audit.deployment import Deployment
from txnframework_spark.jobs.audit.entries import Batches
from txnframework_spark.jobs.audit.report import FINDINGS_MAX, AuditFinding
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HEADERS: Final = "txn string, state string, counted array<string>"
_HEADER_FIELDS: Final = pa.schema([("txn", pa.string()), ("state", pa.string()), ("counted", pa.list_(pa.string()))])
NOT_NAMED: Final = {"ledger": -1, "entry": -1, "transaction": ""}
_PAGE: Final = 1_000
_PLACES_MAX: Final = 3
_COORDINATOR_DIGITS: Final = 4


def reading_headers(stores: StoreOptions) -> Callable[[Batches], Batches]:
    """Return a function that reads the records of all transactions whose outcome is still recorded."""

    def read(numbers: Batches) -> Batches:
        host = process.host(stores)
        for _ in numbers:
            left: KeyRange | None = paths.headers_range()
            while left is not None:
                page = process.run(host.metadata.scan(left, _PAGE))
                rows = [
                    {
                        "txn": str(paths.txn_id_of(one.key.path)),
                        "state": header.state,
                        "counted": [str(branch) for branch in header.branches or ()],
                    }
                    for one in page.records
                    for header in (records.decode(records.TransactionHeader, one),)
                ]
                yield pa.RecordBatch.from_pylist(rows, _HEADER_FIELDS)
                left = page.resume if isinstance(page.resume, KeyRange) else None

    return read


async def first_unreserved(host: Host) -> dict[str, str]:
    """Return the first transaction id that was never reserved, by the first digits of the ids of a coordinator."""
    page = await host.metadata.scan(paths.ids_range(), _PAGE)
    found = {}
    for one in page.records:
        first = str(TxnID(paths.coordinator_of(one.key.path), records.decode(records.IdBlock, one).next))
        found[first[:_COORDINATOR_DIGITS]] = first
    return found


def first_of_each(found: DataFrame, rows_max: int = FINDINGS_MAX) -> list[AuditFinding]:
    """Return so many findings of each check, so that many findings of one check do not hide another one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    number = f.row_number().over(Window.partitionBy("check").orderBy(f.lit(0)))
    rows = found.withColumn("number", number).where(f.col("number") <= rows_max).drop("number").collect()
    return [AuditFinding(**row.asDict()) for row in rows]


def check_transactions(spark: SparkSession, entries: DataFrame, stores: StoreOptions, host: Host) -> DataFrame:
    """
    Return the transactions that are not whole, or that contradict their records.

    The records are read after the entries. A transaction that was decided for a reader has ended, so its record does
    not change any more; if it is deleted, its entries were materialized.
    """
    from pyspark.sql import functions as f

    headers = spark.range(0, 1, 1, 1).mapInArrow(reading_headers(stores), HEADERS)
    seen, unseen = f.col("visible"), ~f.col("visible")
    whole = (
        entries.where("txn IS NOT NULL")
        .groupBy("txn", "branch")
        .agg(
            f.coalesce(f.bool_or(seen), f.lit(False)).alias("seen"),
            f.coalesce(f.bool_or(unseen), f.lit(False)).alias("unseen"),
            _places(seen).alias("seen_in"),
            _places(unseen).alias("unseen_in"),
            _places(f.lit(True)).alias("places"),
        )
        .join(headers, "txn", "left")
    )
    counts = f.array_contains("counted", f.col("branch")) & (f.col("state") == "COMMITTED")
    decided = f.col("seen") | f.col("unseen")
    is_torn = f.col("seen") & f.col("unseen")
    is_wrong = (
        ((f.col("state") == "OPEN") & decided)
        | ((f.col("state") != "OPEN") & ~counts & f.col("seen"))
        | (counts & f.col("unseen"))
    )
    is_unknown = _is_unreserved(process.run(first_unreserved(host)))
    branch = f.when(f.col("branch") == "0", "").otherwise(f.format_string("branch %s of ", "branch"))
    torn = f.format_string("%sit counts in %s, and does not count in %s", branch, "seen_in", "unseen_in")
    sight = f.when(f.col("seen"), "see").otherwise("do not see")
    wrong = f.format_string("%sit is %s, but readers %s its messages in %s", branch, "state", sight, "places")
    unknown = f.format_string("no coordinator of this deployment has begun it; its messages are in %s", "places")
    return findings(
        whole.withColumn("transaction", f.col("txn")).withColumn("name", f.col("places")),
        f.when(is_torn, "torn-transaction").when(is_wrong, "wrong-outcome").when(is_unknown, "unknown-transaction"),
        f.when(is_torn, torn).when(is_wrong, wrong).otherwise(unknown),
    )


def findings(rows: DataFrame, check: Column, detail: Column) -> DataFrame:
    """Return the rows with a check as findings; rows about no entry or transaction lack the columns."""
    from pyspark.sql import functions as f

    absent = {name: f.lit(value) for name, value in NOT_NAMED.items() if name not in rows.columns}
    found = rows.withColumns(absent | {"check": check, "detail": detail}).where(f.col("check").isNotNull())
    return found.select(*AuditFinding.__struct_fields__)


def _places(condition: Column) -> Column:
    from pyspark.sql import functions as f

    names = f.slice(f.array_sort(f.collect_set(f.when(condition, f.col("name")))), 1, _PLACES_MAX)
    return f.array_join(names, ", ")


def _is_unreserved(first: dict[str, str]) -> Column:
    from pyspark.sql import functions as f

    coordinator = f.substring("txn", 1, _COORDINATOR_DIGITS)
    known = f.lit(False)
    for digits, bound in first.items():
        known = known | ((coordinator == digits) & (f.col("txn") < bound))
    return ~known


def check_copies(spark: SparkSession, entries: DataFrame, deployment: Deployment, unchanged: set[str]) -> DataFrame:
    """
    Return what contradicts the originals in the compacted copies of the segments ``unchanged``.

    A copy of another compactor than ``EVERYTHING`` may leave out any message.
    """
    from pyspark.sql import functions as f

    kept = spark.createDataFrame(
        [
            (name, one.upto.ledger_id, one.upto.entry_id, deployment.first_ledger(name), one.compactor == EVERYTHING)
            for name, one in deployment.kept.items()
            if name in unchanged
        ],
        "name string, upto_ledger bigint, upto_entry bigint, first_ledger bigint, everything boolean",
    )
    position = ["name", "ledger", "entry"]
    originals = (
        entries.join(f.broadcast(kept), "name")
        .where("struct(ledger, entry) <= struct(upto_ledger, upto_entry)")
        .select(*position, f.col("hash").alias("original"), "visible", f.lit(True).alias("exists"))
    )
    copies = (
        entries.where(f.col("original_ledger").isNotNull())
        .groupBy(
            f.col("copy_of").alias("name"),
            f.col("original_ledger").alias("ledger"),
            f.col("original_entry").alias("entry"),
        )
        .agg(
            f.count(f.lit(1)).alias("copies"),
            f.max("original_hash").alias("copy"),
            f.max(f.format_string("%d:%d of %s", "ledger", "entry", "name")).alias("place"),
        )
    )
    joined = originals.join(copies, position, "full").join(f.broadcast(kept), "name")
    is_trimmed = f.col("exists").isNull() & (f.col("ledger") < f.col("first_ledger"))
    is_stray = (f.col("copies") > 1) | (f.col("exists").isNull() & ~is_trimmed)
    is_aborted = f.col("copies").isNotNull() & ~f.col("visible")
    is_changed = f.col("copy") != f.col("original")
    is_missing = f.col("copies").isNull() & f.col("visible") & f.col("everything")
    original = f.when(f.col("exists"), "exists").otherwise("is missing")
    return findings(
        joined,
        f.when(is_stray, "stray-copy")
        .when(is_aborted, "aborted-compacted")
        .when(is_changed, "changed-copy")
        .when(is_missing, "missing-copy"),
        f.when(is_stray, f.format_string("it has %d copies, and its original %s", "copies", original))
        .when(is_aborted, f.format_string("it is aborted, and %s is a copy of it", "place"))
        .when(is_changed, f.format_string("%s differs from it", "place"))
        .otherwise("it counts, and has no compacted copy"),
    )
