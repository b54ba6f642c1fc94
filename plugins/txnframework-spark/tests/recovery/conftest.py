"""Pipelines that write each row to two topics, in processes to be killed and in the session that all tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.errors import extract_reason
from txnframework_spark.testing.expectations import LEFT, RIGHT
from txnframework_spark.testing.pipelines import WAIT_S, PipelineProcess
from txnframework_spark.testing.program import PipelineJob, command_of, start
from txnframework_spark.testing.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def segments() -> int:
    """How many segments the input has."""
    return 2


@pytest.fixture
def stores(tmp_path: Path, segments: int) -> Stores:
    made = Stores(tmp_path, f"sqlite:///{tmp_path}/txn.db")
    made.create("in", segments=segments)
    made.create(LEFT, RIGHT)
    return made


@pytest.fixture
def job(stores: Stores) -> Callable[..., PipelineJob]:
    """Return what describes the pipeline over this test's stores; ``changes`` as fields of Job."""

    def make(**changes: Any) -> PipelineJob:
        return PipelineJob(**{"url": stores.url, "checkpoint": str(stores.checkpoint), **changes})

    return make


@pytest.fixture
def start_process(stores: Stores, job: Callable[..., PipelineJob]) -> Iterator[Callable[..., PipelineProcess]]:
    """Return what starts the pipeline in a process of its own, to wait at the given pause points; and others in it."""
    numbers = itertools.count(1)
    with ExitStack() as stack:

        def start_one(*points: str, others: Sequence[PipelineJob] = (), **changes: Any) -> PipelineProcess:
            name = f"start-{next(numbers)}"
            command = command_of(job(**changes), *others)
            return stack.enter_context(PipelineProcess(command, stores.directory, name, points))

        yield start_one


@pytest.fixture
def run(spark: SparkSession, job: Callable[..., PipelineJob]) -> Callable[..., str | None]:
    """Return what runs the pipeline, in the session that all share, until everything is done that is there.

    It returns what a user reads when it fails: the one line of Spark's exception that is not Spark's own.
    """

    def run_one(transform: Callable[[DataFrame], DataFrame] | None = None, **changes: Any) -> str | None:
        from pyspark.errors import StreamingQueryException

        query = start(spark, job(**changes), transform)
        try:
            assert query.awaitTermination(WAIT_S)
        except StreamingQueryException as error:
            return extract_reason(str(error))
        finally:
            query.stop()
        return None

    return run_one
