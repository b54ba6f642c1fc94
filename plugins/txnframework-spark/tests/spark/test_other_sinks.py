"""Queries with ``groupId`` whose output is no topic: acknowledged in ``foreachBatch``, or refused.

The sink is an SQLite file that writes each version of an application once, as Delta Lake does with the same options.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pyspark_txnframework import acknowledge, transaction, txn_options
from txnframework_spark.errors import Unsupported, extract_reason
from txnframework_spark.testing.pipelines import WAIT_S
from txnframework_spark.testing.stores import Stores, once, values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[["DataFrame", int], None]


class Rows:
    """A table beside the stores, and the versions it has of each application."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._opened() as found:
            found.execute("CREATE TABLE rows (value TEXT)")
            found.execute("CREATE TABLE versions (application TEXT PRIMARY KEY, version INTEGER)")

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file)

    def write(self, rows: list[str], txnAppId: str, txnVersion: str) -> None:  # noqa: N803 - the options' names
        with closing(self._opened()) as opened, opened:
            last = opened.execute("SELECT version FROM versions WHERE application = ?", (txnAppId,)).fetchone()
            if last is not None and last[0] >= int(txnVersion):
                return
            opened.executemany("INSERT INTO rows VALUES (?)", [(row,) for row in rows])
            opened.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (txnAppId, int(txnVersion)))

    def read(self) -> Counter[str]:
        with closing(self._opened()) as opened:
            return Counter(row for (row,) in opened.execute("SELECT value FROM rows"))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.db")


@pytest.fixture
def run(spark: SparkSession, stores: Stores) -> Callable[..., str | None]:
    """Return what runs a query until everything is read; it returns why it failed."""
    from pyspark.errors import StreamingQueryException

    def run_one(write: Write | None, **source: str) -> str | None:
        given = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest", "groupId": "g"}
        frame = spark.readStream.format("txnframework").options(**given, maxOffsetsPerTrigger="10", **source).load()
        writer = frame.selectExpr("cast(value as string) as value").writeStream
        writer = writer.foreachBatch(write) if write is not None else writer.format("noop")
        query = writer.option("checkpointLocation", str(stores.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S)
        except StreamingQueryException as error:
            return extract_reason(str(error))
        finally:
            query.stop()
        return None

    return run_one


def test_each_message_is_written_once_and_acknowledged(stores: Stores, rows: Rows, run: Any) -> None:
    """Killed between the write and the acknowledgment, or before Spark knows of it; and the checkpoint is lost."""
    fails = {"written": 1, "acknowledged": 2}

    def write(batch: DataFrame, batch_id: int) -> None:
        found = [row.value for row in batch.collect()]
        rows.write(found, **txn_options(batch, batch_id))
        if fails.get("written") == batch_id:
            del fails["written"]
            raise OSError("killed before it was acknowledged")
        assert acknowledge(batch, batch_id, metadata=stores.url) == bool(found)
        if fails.get("acknowledged") == batch_id:
            del fails["acknowledged"]
            raise OSError("killed before Spark knew of it")

    stores.publish(values(0, 40))
    for place in ("before it was acknowledged", "before Spark knew of it"):
        told = run(write)
        assert told is not None
        assert place in told
    assert run(write) is None
    assert not fails
    assert rows.read() == once(values(0, 40))
    # What is acknowledged is not read again by a query that begins anew.
    shutil.rmtree(stores.checkpoint)
    stores.publish(values(40, 60))
    assert run(write) is None
    assert rows.read() == once(values(0, 60))


def test_topics_and_a_delta_table_take_part_in_one_batch(stores: Stores, tmp_path: Path, run: Any) -> None:
    """
    Killed after the table was written, before the commit, and before Spark knows of it; then the checkpoint is lost.
    """
    table, fails = str(tmp_path / "table"), {"table": 1, "commit": 2}
    committed: dict[int, int] = {}
    stores.create("even", "odd")

    def fail(step: str, batch_id: int) -> None:
        if fails.get(step) == batch_id:
            del fails[step]
            raise OSError(f"killed after {step}")

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.persist()
        with transaction(rows, batch_id, metadata=stores.url, txnAppId="app") as txn:
            is_even = "cast(substr(value, 7) as int) % 2 = 0"
            count = txn.write(rows.where(is_even), "even")
            count += txn.write(rows.where(f"not ({is_even})").selectExpr("value", "'odd' as topic"))
            assert count == rows.count()
            append_once(table, rows.toArrow(), **txn.options)
            fail("table", batch_id)
            if batch_id not in committed:
                assert len(stores.rows("even", "odd")) == sum(committed.values())
        committed[batch_id] = count
        fail("commit", batch_id)

    stores.publish(values(0, 40))
    for step in ("table", "commit"):
        told = run(write)
        assert told is not None
        assert f"killed after {step}" in told
    assert run(write) is None
    assert not fails
    shutil.rmtree(stores.checkpoint)
    committed = {-1: 40}
    stores.publish(values(40, 60))
    assert run(write) is None
    assert stores.read("even") + stores.read("odd") == once(values(0, 60))
    assert Counter(DeltaTable(table).to_pyarrow_table()["value"].to_pylist()) == once(values(0, 60))


def test_a_second_transaction_of_a_batch_is_refused(stores: Stores, run: Any) -> None:
    """It would be taken for a repetition of the first one, and its rows would be dropped. A failed one may repeat."""
    second: list[Callable[[DataFrame, int], None]] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.persist()
        options = {"metadata": stores.url, "txnAppId": "app"}
        with suppress(OSError), transaction(rows, batch_id, **options) as txn:
            txn.write(rows, "out")
            raise OSError("first try")
        with transaction(rows, batch_id, **options) as txn:
            txn.write(rows, "out")
            if second[-1] is nested:
                nested(rows, batch_id)
        if second[-1] is after:
            after(rows, batch_id)

    def nested(rows: DataFrame, batch_id: int) -> None:
        with transaction(rows, batch_id, metadata=stores.url, txnAppId="app") as txn:
            txn.write(rows, "out")

    def after(rows: DataFrame, batch_id: int) -> None:
        with transaction(rows, batch_id, metadata=stores.url, txnAppId="other") as txn:
            txn.write(rows, "out")

    stores.publish(values(0, 5))
    for one, written in ((nested, 0), (after, 5)):
        second.append(one)
        told = run(write)
        assert told is not None
        assert "batch 0 has a transaction already" in told
        assert len(stores.rows("out")) == written
    second.append(write)
    assert run(write) is None
    assert stores.read() == once(values(0, 5))


def test_a_task_that_is_repeated_in_a_transaction_counts_once(stores: Stores, run: Any) -> None:
    """Its first attempt fails when all of its rows are written."""

    def write(batch: DataFrame, batch_id: int) -> None:
        def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark.taskcontext import TaskContext

            yield from batches
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")

        with transaction(batch, batch_id, metadata=stores.url, txnAppId="app") as txn:
            assert txn.write(batch.mapInArrow(fail_first, "value string"), "out") == 5

    # One key, so one task: Spark waits a second before it repeats one.
    stores.publish(["value"] * 5)
    assert run(write) is None
    assert stores.read() == {"value": 5}


def test_available_now_ends_where_it_began_although_segments_split(stores: Stores, run: Any) -> None:
    """All of eight segments split while they are read; what their children get later is for the next start."""

    def write(batch: DataFrame, batch_id: int) -> None:
        with transaction(batch, batch_id, metadata=stores.url, txnAppId="app") as txn:
            txn.write(batch, "out")
        if batch_id == 1:
            stores.split_all("in")
            stores.publish(values(40, 60))

    for _ in range(2):
        stores.split_all("in")
    stores.publish(values(0, 40))
    assert run(write) is None
    assert stores.read() == once(values(0, 40))
    assert run(write) is None
    assert stores.read() == once(values(0, 60))


def append_once(table: str, rows: pa.Table, txnAppId: str, txnVersion: str) -> None:  # noqa: N803 - the options' names
    """Append to a Delta table, unless it has this version of the application."""
    version = int(txnVersion)
    if DeltaTable.is_deltatable(table):
        last = DeltaTable(table).transaction_version(txnAppId)
        if last is not None and last >= version:
            return
    once = CommitProperties(app_transactions=[Transaction(txnAppId, version)])
    write_deltalake(table, rows, mode="append", commit_properties=once)


def test_a_sink_that_acknowledges_nothing_is_refused(stores: Stores, run: Any) -> None:
    stores.publish(values(0, 40))
    told = run(None)
    assert told is not None
    assert "batches of subscription g of topic://public/default/in are not acknowledged" in told
    assert "pyspark_txnframework.acknowledge(batch, batch_id)" in told
    shutil.rmtree(stores.checkpoint)
    assert run(None, allowUnacknowledged="true") is None


def test_the_program_of_the_page_writes_each_row_once(spark: SparkSession, stores: Stores) -> None:
    """That of spark-other-sinks.md, but for where its folders are and that it ends; also with a new checkpoint."""
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "spark-other-sinks.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    # Spark looks where its JVM was started, which was before this test.
    program = program.replace('{"config": "txnframework.toml"}', repr({"metadata": stores.url}))
    assert stores.url in program
    assert ".start()" in program
    program = program.replace(".start()", ".trigger(availableNow=True).start()").replace("/lake", str(stores.directory))
    stores.create("orders")
    # A new subscription begins at the latest message: so that there is something to do, it is made before.
    stores.subscribe("orders", "lake")
    for last in (10, 20):
        stores.publish(values(last - 10, last), "orders")
        exec(compile(program, "spark-other-sinks.md", "exec"), {"__name__": "__main__"})
        shutil.rmtree(stores.directory / "checkpoint")
        found = spark.read.parquet(str(stores.directory / "orders")).select("value").collect()
        assert Counter(row.value for row in found) == once(values(0, last))


def test_it_is_called_in_foreach_batch_only(spark: SparkSession, stores: Stores) -> None:
    frame = spark.range(1)
    for call in (
        lambda: acknowledge(frame, 0, metadata=stores.url),
        lambda: txn_options(frame, 0),
        lambda: transaction(frame, 0, metadata=stores.url).__enter__(),
    ):
        with pytest.raises(Unsupported, match="only in a foreachBatch function"):
            call()
