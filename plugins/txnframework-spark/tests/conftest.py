"""Real Spark, small data, stores in SQLite; one session for all tests of this distribution."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.errors import JavaUnusable
from txnframework_spark.session import LOCAL_CHECKPOINT, check_java, spark_session
from txnframework_spark.testing.pipelines import WAIT_S
from txnframework_spark.testing.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SPANS = Path(__file__).parent / "spans"
"""A distribution that records spans in every Python process of Spark."""


@pytest.fixture(scope="session")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the file of the spans of Spark's Python processes; their environment is set before Spark starts."""
    file = tmp_path_factory.mktemp("spans") / "spans.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "span_recorder")
        patch.setenv("TXN_TEST_SPANS", str(file))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(SPANS), os.environ.get("PYTHONPATH")))))
        yield file


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spans: Path) -> Iterator[SparkSession]:
    try:
        check_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        **LOCAL_CHECKPOINT,
        "spark.master": "local[2,3]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        # Nothing here lives long enough for code that is compiled well, or for a heap that is cleaned in parallel.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with spark_session(settings, None) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    made = Stores(tmp_path, f"sqlite:///{tmp_path}/txn.db")
    made.create("in", "out")
    return made


@pytest.fixture
def stores_of() -> type[Stores]:
    """Return what makes stores of a directory and a URL."""
    return Stores


@pytest.fixture
def run_available(spark: SparkSession, stores: Stores) -> Callable[..., Any]:
    """Return what runs the pipeline until everything that is there is done."""

    def run(
        transform: Callable[[DataFrame], DataFrame] | None = None,
        source: dict[str, str] | None = None,
        sink: dict[str, str] | None = None,
    ) -> Any:
        given = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest"}
        frame = spark.readStream.format("txnframework").options(**(given | (source or {"groupId": "g"}))).load()
        frame = transform(frame) if transform is not None else frame.select("key", "value")
        query = (
            frame.writeStream.format("txnframework")
            .options(metadata=stores.url, **(sink or {"topic": "out", "txnAppId": "app"}))
            .option("checkpointLocation", str(stores.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(WAIT_S)
            assert not query.isActive
        finally:
            query.stop()
        return query

    return run
