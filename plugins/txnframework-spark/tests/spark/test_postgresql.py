"""Brokers and a pipeline on one PostgreSQL: different processes of different kinds, of which some are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from txnframework.model.names import TopicName
from txnframework_spark.jobs.audit.acknowledgments import Flow
from txnframework_spark.jobs.audit.audit import AuditJob
from txnframework_spark.jobs.session import JobProgress
from txnframework_spark.options.parser import StoreOptions
from txnframework_sql.testing.servers.databases import fresh_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

BROKER = Path(__file__).with_name("broker.py")
MESSAGES = 150
STEPS_BEFORE_KILL = 7
WAIT_S = 240


@pytest.fixture
def stores(tmp_path: Path, stores_of: Any) -> Iterator[Any]:
    """Stores in a database of their own."""
    with fresh_database() as url:
        made = stores_of(tmp_path, url)
        made.create("raw", "in", "out")
        yield made


@contextmanager
def broker(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a broker, which is killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(BROKER), url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def see(process: subprocess.Popen[str], steps: int) -> None:
    """Return when a broker has come so many transactions further."""
    assert process.stdout is not None
    for _ in range(steps):
        assert process.stdout.readline() == "step\n", process.communicate()[1]


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when it is so."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def copied_to_end(query: StreamingQuery, stores: Any) -> Counter[str]:
    """Return what the pipeline has written once it has read what it sees now."""
    query.processAllAvailable()
    found: Counter[str] = stores.read("out")
    return found


def test_a_broker_is_killed_beside_another_and_a_pipeline(spark: SparkSession, stores: Any) -> None:
    """Two brokers move messages between topics while a pipeline copies them: each message has one output.

    One of the brokers is killed in the middle of a transaction: the other one takes over what it had, and the pipeline
    neither waits for its open transaction without end nor shows it. An audit finds every output, and nothing else.
    """
    values = [f"value {number}" for number in range(MESSAGES)]
    stores.publish(values, "raw")
    given = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest", "groupId": "g"}
    frame = spark.readStream.format("txnframework").options(**given).load().select("key", "value")
    writer = frame.writeStream.format("txnframework").options(metadata=stores.url, topic="out", txnAppId="app")
    query = writer.option("checkpointLocation", str(stores.checkpoint)).start()
    try:
        with broker(stores.url) as first:
            see(first, 1)
            with broker(stores.url) as second:
                see(first, STEPS_BEFORE_KILL)
                first.kill()
                see(second, 1)
                wait_for(lambda: stores.read("in") == Counter(values))
        # What the killed broker committed last, other processes see within some heartbeats.
        wait_for(lambda: copied_to_end(query, stores) == Counter(values))
    finally:
        query.stop()
    raw, between, out = (TopicName.parse(name) for name in ("raw", "in", "out"))
    flows = Flow(raw, "brokers", between), Flow(between, "g", out)
    audit = AuditJob(StoreOptions(metadata=stores.url), stores.directory / "report", 100, flows)
    found = audit.run(spark, JobProgress(Console(quiet=True)))
    assert found.findings == []
    assert sum(one.messages for one in found.ledgers) >= 3 * MESSAGES
