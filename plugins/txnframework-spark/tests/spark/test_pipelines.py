"""Pipelines on real Spark: every message once, whatever is killed, retried, deleted or asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.errors import describe_error
from txnframework_spark.testing.pipelines import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., Any]


def values(first: int, last: int) -> list[str]:
    return [f"value {number}" for number in range(first, last)]


def once(first: int, last: int) -> Counter[str]:
    return Counter(values(first, last))


def test_a_row_may_name_its_topic_and_all_topics_are_one_transaction(stores: Any, run_available: Run) -> None:
    from pyspark.sql import functions

    stores.create("other")

    def transform(frame: DataFrame) -> DataFrame:
        number = functions.split(frame.value.cast("string"), " ")[1].cast("int")
        topic = functions.when(number % 2 == 0, "other").otherwise("another")
        return frame.select(frame.key, frame.value, topic.alias("topic"))

    stores.publish(values(0, 4))
    from pyspark.errors import StreamingQueryException

    no_topic = {"txnAppId": "app"}
    with pytest.raises(StreamingQueryException, match="another does not exist"):
        run_available(transform, sink=no_topic)
    assert stores.read("other") == Counter()
    stores.create("another")
    run_available(transform, sink=no_topic)
    assert stores.read("other") + stores.read("another") == once(0, 4)


def test_what_cannot_work_is_explained(spark: SparkSession, stores: Any, run_available: Run) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run_available(source={"endingOffsets": "latest"})
    told = describe_error(caught.value)
    assert told == "option endingOffsets: a stream has no end; remove it, or read a batch with spark.read"
    with pytest.raises(AnalysisException, match="did you mean groupId"):
        spark.readStream.format("txnframework").options(subscribe="in", gruopId="g").load()
    with pytest.raises(AnalysisException, match="availableNow"):
        spark.read.format("txnframework").options(metadata=stores.url, subscribe="in", groupId="g").load().collect()


def test_a_full_backlog_of_an_output_is_explained(spark: SparkSession, stores: Any) -> None:
    """The sentence comes before everything that Spark adds, and nothing is written."""
    from pyspark.errors import StreamingQueryException

    config = stores.directory / "limited.toml"
    stores_table = "".join(f'[{one}]\nurl = "{stores.url}"\n' for one in ("metadata", "ledger"))
    config.write_text(f"{stores_table}[backlog_quota]\nmessages = 3\n")
    stores.subscribe("out", "slow")
    stores.publish(values(0, 3), topic="out")
    stores.publish(values(3, 6))
    given = {"config": str(config), "subscribe": "in", "groupId": "g", "startingOffsets": "earliest"}
    rows = spark.readStream.format("txnframework").options(**given).load().select("key", "value")
    query = (
        rows.writeStream.format("txnframework")
        .options(config=str(config), topic="out", checkpointLocation=str(stores.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(WAIT_S)
    told = describe_error(caught.value)
    assert told.startswith("the backlog quota of topic://public/default/out is exceeded: subscription slow ")
    assert stores.read() == once(0, 3)
