"""A batch whose topics change under it, whose transaction ends, or whose database is restarted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from txnframework.model.transactions import State
from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, compare
from txnframework_spark.testing.stores import Stores, values
from txnframework_sql.testing.servers.postgresql import PostgresServer

TIMEOUT_MS = 240_000
BOTH_SEGMENTS = {"alignSegments": "false"}
"""Each batch reads of both segments, though one was stored after the other; so it has two tasks."""
"""Longer than a batch takes anywhere; twice that is less than what it is without being set."""
Start = Callable[..., Any]
Run = Callable[..., str | None]


def test_topics_are_split_and_merged_in_mid_batch(stores: Stores, start_process: Start, run: Run) -> None:
    """On both sides, under an open transaction; then the driver is killed when that is committed and Spark does not
    know it, so that the batch is planned again over segments that have children by now.
    """
    stores.publish(values(0, 50))
    with start_process("mid-write@0", "mid-write@1", "committed@1") as driver:
        driver.arrival("mid-write@0")
        for topic in ("in", LEFT):
            stores.split_all(topic)
        stores.publish(values(50, 70))
        driver.release("mid-write@0")
        driver.arrival("mid-write@1")
        for topic in ("in", LEFT):
            stores.merge_all(topic)
        stores.publish(values(70, 90))
        driver.release("mid-write@1")
        driver.arrival("committed@1")
    assert run() is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 90)) == Defects()


def test_a_transaction_ends_while_the_batch_runs(stores: Stores, start_process: Start, run: Run) -> None:
    """It timed out before a row was written: the tasks fail, and are tried again in another transaction. That one is
    aborted by an operator before the decision: the query fails and says so, and its next start does the batch.
    """
    stores.publish(values(0, 30))
    sink = {"transactionTimeoutMs": str(TIMEOUT_MS)}
    with start_process("begun@0", "acks-put@0", sink=sink, source=BOTH_SEGMENTS) as driver:
        timed_out = driver.arrivals("begun@0", 2)[0]["txn"]
        # The next one has as long, which no machine needs.
        stores.expire(2 * TIMEOUT_MS)
        assert stores.outcome(timed_out) is State.ABORTED
        driver.release("begun@0")
        aborted = driver.arrival("acks-put@0")["txn"]
        assert aborted != timed_out
        stores.abort(aborted)
        driver.release("acks-put@0")
        told = driver.failure()
        assert told is not None
        assert "batch 0 was not committed" in told
    assert stores.rows(LEFT, RIGHT) == ()
    assert run() is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 30)) == Defects()


def test_the_database_is_restarted_in_mid_batch(tmp_path: Path, start_process: Start) -> None:
    """Killed while tasks write, and again before the decision: what it does not answer is asked again, and the query
    goes on without a restart.
    """
    with PostgresServer() as server:
        url = server.create_database("pipeline")
        stores = Stores(tmp_path, url)
        stores.create("in", LEFT, RIGHT)
        stores.publish(values(0, 60))
        with start_process("mid-write@0", "acks-put@1", url=url, source=BOTH_SEGMENTS) as driver:
            for place, waiting in (("mid-write@0", 2), ("acks-put@1", 1)):
                # Everybody is there: a task that met no database would use up its attempts faster than one starts.
                driver.arrivals(place, waiting)
                server.kill()
                server.start()
                driver.release(place)
            assert driver.failure() is None
        assert compare(stores.rows(LEFT, RIGHT), values(0, 60)) == Defects()
