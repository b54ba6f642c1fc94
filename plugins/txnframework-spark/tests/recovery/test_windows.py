"""A backlog of very unequal segments, a stateful aggregation behind a watermark, kills and splits: nothing is late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txnframework_spark.testing.expectations import (
    LEFT,
    RIGHT,
    Defects,
    batches,
    closed_windows,
    compare,
    events,
    publish,
)
from txnframework_spark.testing.pipelines import PipelineProcess
from txnframework_spark.testing.program import PipelineJob, command_of, start
from txnframework_spark.testing.stores import Stores
from txnframework_sql.testing.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 12
WAIT_S = 1_800.0


@contextmanager
def stores_in(directory: Path, backend: str) -> Iterator[Stores]:
    with ExitStack() as stack:
        url = f"sqlite:///{directory}/txn.db"
        if backend == "postgresql":
            url = stack.enter_context(PostgresServer()).create_database("windows")
        made = Stores(directory, url)
        made.create("in", segments=4)
        made.create(LEFT, RIGHT)
        yield made


@pytest.mark.parametrize(
    ("count", "backend"),
    [
        (6_000, "sqlite"),
        pytest.param(300_000, "sqlite", marks=pytest.mark.slow),
        pytest.param(300_000, "postgresql", marks=pytest.mark.slow),
    ],
)
def test_every_closed_window_of_a_backlog_is_exact(
    spark: SparkSession, tmp_path: Path, count: int, backend: str
) -> None:
    """Half of the backlog stands behind a split. The driver is killed while a batch is written, and when one is
    decided that Spark does not know of; meanwhile another segment is split, and more is published. The last start is in
    the session that all tests share.

    Every window that the watermark has closed is compared with plain Python.
    """
    given = events(count, seed=25)
    settings = {
        "plan": "windows",
        "source": {"maxOffsetsPerTrigger": str(math.ceil(count / BATCHES))},
        "sink": {"txnAppStateful": "true"},
    }
    with stores_in(tmp_path, backend) as stores, ExitStack() as stack:
        publish(stores.url, "in", given[: count // 2])
        stores.split("in", 1)
        publish(stores.url, "in", given[count // 2 : count * 9 // 10])

        job = PipelineJob(url=stores.url, checkpoint=str(stores.checkpoint), **settings)

        def process(name: str, *points: str) -> PipelineProcess:
            return stack.enter_context(PipelineProcess(command_of(job), tmp_path, name, points, WAIT_S))

        first = process("first", "mid-write@2")
        first.arrival("mid-write@2")
        first.kill()
        stores.split("in", 2)
        second = process("second", "committed@6")
        publish(stores.url, "in", given[count * 9 // 10 :])
        second.arrival("committed@6")
        second.kill()
        assert start(spark, job).awaitTermination(WAIT_S)
        rows = stores.rows(LEFT, RIGHT)
        expected = closed_windows(given)
        assert len(expected) > count // 20
        assert compare(rows, expected) == Defects()
        assert len(batches(rows)) >= BATCHES // 2
