"""Options are typed, and what is wrong with them is said in one sentence."""

from __future__ import annotations

import pytest

from txnframework.model.reading import Isolation
from txnframework_spark.errors import InvalidOption, UnknownOption
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.options.stores import StoreOptions


def test_defaults_follow_the_kafka_source() -> None:
    options = SourceOptions.parse({"subscribe": "orders"})
    assert [str(topic) for topic in options.topics] == ["topic://public/default/orders"]
    assert options.group_id is None
    assert options.starting_offsets == "latest"
    assert options.fail_on_data_loss
    assert options.isolation is Isolation.READ_COMMITTED


def test_names_are_matched_without_regard_to_case() -> None:
    """Spark hands options over in lower case."""
    options = SourceOptions.parse({"subscribe": "a, b/c/d", "groupid": "g", "maxoffsetspertrigger": "10"})
    assert len(options.topics) == 2
    assert (options.group_id, options.max_offsets_per_trigger) == ("g", 10)


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(UnknownOption, match="did you mean maxOffsetsPerTrigger") as found:
        SourceOptions.parse({"subscribe": "a", "maxOffsetPerTrigger": "10"})
    assert found.value.nearest == "maxOffsetsPerTrigger"


def test_a_sink_option_is_unknown_to_a_source() -> None:
    with pytest.raises(UnknownOption, match="source"):
        SourceOptions.parse({"subscribe": "a", "txnAppId": "x"})


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({}, "subscribe"),
        ({"subscribe": " "}, "subscribe"),
        ({"subscribe": "a,a"}, "subscribe"),
        ({"subscribe": "persistent://public/default/a"}, "subscribe"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"subscribe": "a", "startingOffsets": "{}"}, "startingOffsets"),
        ({"subscribe": "a", "groupId": "g", "isolationLevel": "read_uncommitted"}, "isolationLevel"),
        ({"subscribe": "a", "config": "t.toml", "metadata": "memory:"}, "config"),
        ({"subscribe": "a", "ledger": "memory:"}, "ledger"),
    ],
)
def test_a_wrong_value_names_its_option(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOption) as found:
        SourceOptions.parse(given)
    assert found.value.option == option


def test_a_sink_ignores_what_spark_itself_puts_there() -> None:
    options = SinkOptions.parse({"topic": "out", "checkpointlocation": "/x", "txnappid": "app", "txnappreset": "true"})
    assert str(options.topic) == "topic://public/default/out"
    assert (options.application_id, options.reset, options.stateful) == ("app", True, False)


def test_stores_come_from_a_file_from_urls_or_from_the_default() -> None:
    assert StoreOptions().source() is None
    assert StoreOptions(config="t.toml").source() == "t.toml"
    assert StoreOptions(metadata="memory:").source() == {"metadata": {"url": "memory:"}}
