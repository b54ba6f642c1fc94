"""The checks of an audit that compare what many tasks read, on Spark: transactions, and compacted copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txnframework.broker import EVERYTHING, Host
from txnframework.model import paths, records
from txnframework.model.ids import TxnID
from txnframework.model.metadata import KeyRange
from txnframework_spark import process
from txnframework_spark.jobs.audit.deployment import Deployment
from txnframework_spark.jobs.audit.findings import FINDINGS_MAX, AuditFinding
from txnframework_spark.jobs.audit.pieces import BRANCH, COPY, ENTRY, Batches
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

HEADERS: Final = "txn string, state string, counted array<string>"
_HEADER_FIELDS: Final = pa.schema([("txn", pa.string()), ("state", pa.string()), ("counted", pa.list_(pa.string()))])
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


def first_of_each(found: DataFrame, rows_max: int = FINDINGS_MAX) -> list[Row]:
    """Return so many rows of each ``check``, so that many findings of one check do not hide another one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    number = f.row_number().over(Window.partitionBy("check").orderBy(f.lit(0)))
    return found.withColumn("number", number).where(f.col("number") <= rows_max).drop("number").collect()


def branches_of(rows: DataFrame) -> DataFrame:
    """Return the branches of transactions, one row for each ledger, with their entries and messages."""
    from pyspark.sql import functions as f

    branches = rows.where(f.col("kind") == BRANCH)
    return branches.groupBy("txn", "branch", "name", "ledger", "visible").agg(
        f.sum("entries").alias("entries"), f.sum("messages").alias("messages")
    )


def check_transactions(spark: SparkSession, rows: DataFrame, stores: StoreOptions, host: Host) -> list[AuditFinding]:
    """
    Return the transactions that are not whole, or that contradict their records.

    The records are read after the entries. A transaction that was decided for a reader has ended, so its record does
    not change any more; if it is deleted, its entries were materialized.
    """
    from pyspark.sql import functions as f

    headers = spark.range(0, 1, 1, 1).mapInArrow(reading_headers(stores), HEADERS)
    seen, unseen = f.col("visible"), ~f.col("visible")
    whole = (
        rows.where(f.col("kind") == BRANCH)
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
    wrong = (
        ((f.col("state") == "OPEN") & decided)
        | ((f.col("state") != "OPEN") & ~counts & f.col("seen"))
        | (counts & f.col("unseen"))
    )
    check = (
        f.when(f.col("seen") & f.col("unseen"), "torn-transaction")
        .when(wrong, "wrong-outcome")
        .when(_is_unreserved(process.run(first_unreserved(host))), "unknown-transaction")
    )
    found = first_of_each(whole.withColumn("check", check).where(f.col("check").isNotNull()))
    return [_transaction_finding(one.asDict()) for one in found]


def _places(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.slice(f.array_sort(f.collect_set(f.when(condition, f.col("name")))), 1, _PLACES_MAX)


def _is_unreserved(first: dict[str, str]) -> Column:
    from pyspark.sql import functions as f

    coordinator = f.substring("txn", 1, _COORDINATOR_DIGITS)
    known = f.lit(False)
    for digits, bound in first.items():
        known = known | ((coordinator == digits) & (f.col("txn") < bound))
    return ~known


def _transaction_finding(row: dict[str, object]) -> AuditFinding:
    places, seen, unseen = (", ".join(map(str, row[name])) for name in ("places", "seen_in", "unseen_in"))  # type: ignore[call-overload]
    check, state = str(row["check"]), row["state"]
    branch = "" if row["branch"] == "0" else f"branch {row['branch']} of "
    if check == "torn-transaction":
        detail = f"{branch}it counts in {seen}, and does not count in {unseen}"
    elif check == "wrong-outcome":
        detail = f"{branch}it is {state}, but readers {'see' if row['seen'] else 'do not see'} its messages in {places}"
    else:
        detail = f"no coordinator of this deployment has begun it; its messages are in {places}"
    return AuditFinding(check, places, transaction=str(row["txn"]), detail=detail)


def check_copies(rows: DataFrame, deployment: Deployment, unchanged: set[str]) -> list[AuditFinding]:
    """
    Return what contradicts the originals in the compacted copies of the segments ``unchanged``.

    A copy of another compactor than ``EVERYTHING`` may leave out any message.
    """
    from pyspark.sql import functions as f

    if not unchanged:
        return []
    whole = [segment for segment in unchanged if deployment.kept[segment].compactor == EVERYTHING]
    position = ("name", "ledger", "entry")
    of_these = rows.where(f.col("name").isin(*unchanged))
    originals = of_these.where(f.col("kind") == ENTRY).select(
        *position, f.col("hash").alias("original"), f.col("visible").alias("counts"), f.lit(True).alias("exists")
    )
    copies = (
        of_these.where(f.col("kind") == COPY)
        .groupBy(*position)
        .agg(f.count(f.lit(1)).alias("copies"), f.max("hash").alias("copy"), f.max("detail").alias("place"))
    )
    joined = originals.join(copies, list(position), "full")
    check = (
        f.when(f.col("copies") > 1, "stray-copy")
        .when(f.col("exists").isNull(), "stray-copy")
        .when(f.col("copies").isNotNull() & ~f.col("counts"), "aborted-compacted")
        .when(f.col("copy") != f.col("original"), "changed-copy")
        .when(f.col("copies").isNull() & f.col("counts") & f.col("name").isin(*whole), "missing-copy")
    )
    found = first_of_each(joined.withColumn("check", check).where(f.col("check").isNotNull()))
    return [
        finding for row in found for finding in _copy_finding(row.asDict(), deployment.first_ledger(str(row["name"])))
    ]


def _copy_finding(row: dict[str, object], first_ledger: int) -> Iterator[AuditFinding]:
    check, name = str(row["check"]), str(row["name"])
    ledger, entry = int(str(row["ledger"])), int(str(row["entry"]))
    if check == "stray-copy" and ledger < first_ledger and row["copies"] == 1:
        return  # its original was trimmed
    details = {
        "stray-copy": f"it has {row['copies']} copies, and its original {'exists' if row['exists'] else 'is missing'}",
        "aborted-compacted": f"it is aborted, and {row['place']} is a copy of it",
        "changed-copy": f"{row['place']} differs from it",
        "missing-copy": "it counts, and has no compacted copy",
    }
    yield AuditFinding(check, name, ledger, entry, detail=details[check])
