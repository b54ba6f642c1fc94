"""What a pipeline refuses to do: what the user of the failed query reads, and that nothing was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, compare
from txnframework_spark.testing.stores import Stores, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., str | None]


def test_two_loads_of_one_subscription(spark: SparkSession, stores: Stores, run: Run) -> None:
    def twice(frame: DataFrame) -> DataFrame:
        from txnframework_spark.testing.program import both

        options = {"metadata": stores.url, "subscribe": "in", "groupId": "g"}
        return both(frame.union(spark.readStream.format("txnframework").options(**options).load()))

    stores.publish(values(0, 10))
    told = run(twice)
    assert told is not None
    assert "give each load its own groupId" in told
    assert stores.rows(LEFT, RIGHT) == ()


def test_a_checkpoint_that_disagrees_with_the_subscription(stores: Stores, run: Run) -> None:
    """After a seek, the checkpoint is outdated, and would undo the seek."""
    stores.publish(values(0, 10))
    assert run() is None
    stores.seek_to_the_beginning("in", "g")
    stores.publish(values(10, 20))
    told = run()
    assert told is not None
    assert "the checkpoint and subscription g of topic://public/default/in disagree" in told
    assert "was moved by a seek; delete the checkpoint to continue from there" in told
    assert compare(stores.rows(LEFT, RIGHT), values(0, 10)) == Defects()


def test_a_new_query_under_an_old_application_without_a_subscription(stores: Stores, run: Run) -> None:
    """Nothing tells whether what it reads was processed before."""
    ungrouped = {"source": {"groupId": ""}}
    stores.publish(values(0, 10))
    assert run(**ungrouped) is None
    shutil.rmtree(stores.checkpoint)
    told = run(**ungrouped)
    assert told is not None
    assert "restore the checkpoint, use another txnAppId, or set txnAppReset=true" in told
    assert compare(stores.rows(LEFT, RIGHT), values(0, 10)) == Defects()


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("complete", "a log does not support; use output mode append, and a watermark for aggregations"),
        # Spark refuses it before it asks us.
        ("update", "txnframework does not support Update mode"),
    ],
)
def test_output_modes_that_a_log_has_not(stores: Stores, run: Run, mode: str, sentence: str) -> None:
    stores.publish(["1", "2"])
    told = run(plan="totals", output_mode=mode)
    assert told is not None
    assert sentence in told
