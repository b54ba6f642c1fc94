"""Options are typed, and what is wrong with them is said in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.model.reads import Isolation
from txnframework_spark.errors import InvalidOption, UnknownOption
from txnframework_spark.options.parser import StoreOptions, options_of
from txnframework_spark.options.selection import Bounds, Edge
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "spark-options.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of the distribution")
@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
def test_the_reference_has_every_option_as_it_is_declared(kind: type[Any]) -> None:
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    assert [declared.row for _, declared in options_of(kind) if declared.row not in rows] == []


def test_defaults_follow_the_kafka_source() -> None:
    options = SourceOptions.parse({"subscribe": "orders"})
    assert [str(topic) for topic in options.topics] == ["topic://public/default/orders"]
    assert options.group_id is None
    assert options.starting is None
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
        ({"subscribe": "a", "maxBytesPerTrigger": "64m"}, "maxBytesPerTrigger"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"subscribe": "a", "topics": "b"}, "topics"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "assign"),
        ({"subscribePattern": "a("}, "subscribePattern"),
        ({"assign": "a"}, "assign"),
        ({"assign": '{"a": []}'}, "assign"),
        ({"assign": "{}"}, "assign"),
        ({"subscribe": "a", "startingOffsets": "{}"}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": "first"}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": "first"}}'}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": {"ledger": -1, "entry": 0}}}'}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": {}, "b": {}}'}, "startingOffsets"),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"a": {"1": "latest"}}'}, "startingOffsets"),
        ({"subscribePattern": "b.*", "startingOffsets": '{"a": {}}'}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({"subscribe": "a", "groupId": "g", "startingTimestamp": "1"}, "startingTimestamp"),
        ({"subscribe": "a", "groupId": "g", "startingOffsets": '{"a": {}}'}, "startingOffsets"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": "earliest"}}'}, "endingOffsets"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger"),
        ({"subscribe": "a", "maxTriggerDelay": "5s"}, "maxTriggerDelay"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "6", "maxTriggerDelay": "5"}, "maxTriggerDelay"),
        ({"subscribe": "a", "patternRefreshMs": "5"}, "patternRefreshMs"),
        ({"subscribe": "a", "groupId": "g", "isolationLevel": "read_uncommitted"}, "isolationLevel"),
        ({"subscribe": "a", "config": "t.toml", "metadata": "memory:"}, "config"),
        ({"subscribe": "a", "ledger": "memory:"}, "ledger"),
    ],
)
def test_a_wrong_value_names_its_option(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOption) as found:
        SourceOptions.parse(given)
    assert found.value.option == option


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "1"}, "endingTimestamp"),
        ({"startingOffsets": '{"a": {"0": {"ledger": 0, "entry": 3, "index": 1}}}'}, "startingOffsets"),
    ],
)
def test_what_only_a_batch_takes_is_refused_by_a_stream(given: dict[str, str], option: str) -> None:
    options = SourceOptions.parse({"subscribe": "a", **given})
    with pytest.raises(InvalidOption) as found:
        options.for_stream()
    assert found.value.option == option
    options.for_batch()


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"groupId": "g"}, "groupId"),
        ({"maxOffsetsPerTrigger": "10"}, "maxOffsetsPerTrigger"),
        ({"takeOverTimeoutMs": "10"}, "takeOverTimeoutMs"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
    ],
)
def test_what_only_a_stream_takes_is_refused_by_a_batch(given: dict[str, str], option: str) -> None:
    options = SourceOptions.parse({"subscribe": "a", **given})
    with pytest.raises(InvalidOption) as found:
        options.for_batch()
    assert found.value.option == option
    options.for_stream()


def test_a_stream_begins_at_the_end_and_a_batch_reads_from_the_beginning_to_the_end() -> None:
    options = SourceOptions.parse({"subscribe": "a"})
    assert options.for_stream().starting == Bounds(Edge.LATEST)
    batch = options.for_batch()
    assert (batch.starting, batch.ending) == (Bounds(Edge.EARLIEST), Bounds(Edge.LATEST))


def test_places_are_named_by_topic_and_segment() -> None:
    """What is not named begins at the beginning and ends at the end."""
    text = '{"a": {"0": {"ledger": 1, "entry": 2, "index": 3}, "7": "latest", "8": {"ledger": 0, "entry": 0}}}'
    options = SourceOptions.parse(
        {"subscribe": "a", "startingOffsets": text, "endingOffsets": '{"a": {"0": "latest"}}'}
    )
    topic = TopicName.parse("a")
    named = {0: Position(1, 2, 3), 7: Edge.LATEST, 8: Position(0, 0, 0)}
    assert options.starting == Bounds(Edge.EARLIEST, {topic: named})
    assert options.ending == Bounds(Edge.LATEST, {topic: {0: Edge.LATEST}})


def test_a_pattern_matches_the_whole_of_any_name_that_a_topic_has() -> None:
    def matches(pattern: str, *names: str) -> list[bool]:
        selection = SourceOptions.parse({"subscribePattern": pattern}).selection
        return [selection.matches(TopicName.parse(name)) for name in names]

    assert matches("orders-.*", "orders-eu", "my-orders-eu", "t/n/orders-eu", "orders-") == [True, False, False, True]
    assert matches("t/.*/orders", "t/n/orders", "orders", "t/n/orders-eu") == [True, False, False]
    assert matches("topic://.*", "t/n/a", "a", "persistent://t/n/a") == [True, True, False]
    assert matches(".*", "persistent://t/n/a") == [False]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a|aa)+$", "(.*a){20}b", "([a-z]+)*="])
def test_a_pattern_takes_linear_time(pattern: str) -> None:
    """With Python's own expressions each of these would take years on such a name, and hold up the whole query."""
    selection = SourceOptions.parse({"subscribePattern": pattern}).selection
    assert not selection.matches(TopicName("topic", "public", "default", "a" * 200 + "!"))


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "[", "a{100000}", "(" * 5_000])
def test_a_pattern_that_cannot_be_linear_is_refused(pattern: str) -> None:
    """Lookaround and backreferences among them."""
    with pytest.raises(InvalidOption, match="is not a valid RE2 regular expression") as refused:
        SourceOptions.parse({"subscribePattern": pattern})
    assert len(str(refused.value)) < 1_000


def test_one_topic_and_segments_of_topics_may_be_named_instead() -> None:
    assert SourceOptions.parse({"topic": "a"}).topics == SourceOptions.parse({"topics": "a"}).topics
    assigned = SourceOptions.parse({"assign": '{"a": [0, 2], "b": [1]}'}).selection
    assert assigned.assigned == {TopicName.parse("a"): {0, 2}, TopicName.parse("b"): {1}}


def test_a_relative_configuration_file_is_the_same_one_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert SourceOptions.parse({"subscribe": "a", "config": "t.toml"}).stores.config == "/t.toml"
    assert SinkOptions.of_stream({"topic": "a", "config": "t.toml"}).stores.config == "/t.toml"


def test_a_delay_is_written_as_spark_writes_it() -> None:
    options = SourceOptions.parse({"subscribe": "a", "minOffsetsPerTrigger": "6", "maxTriggerDelay": "15m"})
    assert options.max_trigger_delay_ms == 900_000


def test_a_sink_ignores_what_spark_itself_puts_there() -> None:
    options = SinkOptions.of_stream(
        {"topic": "out", "checkpointlocation": "/x", "txnappid": "app", "txnappreset": "true"}
    )
    assert str(options.topic) == "topic://public/default/out"
    assert (options.application_id, options.reset, options.stateful) == ("app", True, False)


@pytest.mark.parametrize(
    ("given", "option", "said"),
    [
        ({"txnVersion": "3"}, "txnVersion", "write only"),
        ({"transactional": "false", "txnAppId": "a"}, "txnAppId", "transactional=false disables"),
        ({"transactional": "no"}, "transactional", "true, false"),
        ({"maxBytesInFlight": "0"}, "maxBytesInFlight", "at least 1"),
    ],
)
def test_what_a_stream_cannot_have_is_said(given: dict[str, str], option: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as found:
        SinkOptions.of_stream(given)
    assert found.value.option == option


@pytest.mark.parametrize(
    ("given", "option", "said"),
    [
        ({"txnVersion": "3"}, "txnVersion", "requires the option txnAppId"),
        ({"txnAppId": "a"}, "txnAppId", "requires the option txnVersion"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion", "at least 0"),
        ({"txnAppId": "a", "txnVersion": "1", "txnAppReset": "true"}, "txnAppReset", "writeStream only"),
        ({"transactional": "false", "txnAppId": "a", "txnVersion": "1"}, "txnAppId", "transactional=false disables"),
    ],
)
def test_what_a_job_cannot_have_is_said(given: dict[str, str], option: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as found:
        SinkOptions.of_job(given)
    assert found.value.option == option


def test_a_job_has_both_application_and_version_or_neither() -> None:
    both = SinkOptions.of_job({"txnappid": "a", "txnversion": "0"})
    assert (both.application_id, both.version) == ("a", 0)
    assert SinkOptions.of_job({}).version is None
    with pytest.raises(UnknownOption, match="did you mean txnVersion"):
        SinkOptions.of_job({"txnVersoin": "1"})


def test_passwords_of_stores_are_not_shown() -> None:
    given = {
        "subscribe": "orders",
        "metadata": "postgresql://me:s3cret@db/one",
        "ledger": "postgresql://me:s3cret@db/two",
    }
    shown = repr(SourceOptions.parse(given))
    assert "s3cret" not in shown
    assert "db/one" in shown


def test_stores_come_from_a_file_from_urls_or_from_the_default() -> None:
    assert StoreOptions().source() is None
    assert StoreOptions(config="t.toml").source() == "t.toml"
    assert StoreOptions(metadata="memory:").source() == {"metadata": {"url": "memory:"}}


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"startingTimestamp": "9" * 5_000}, "startingTimestamp"),
        ({"startingTimestamp": str(2**63)}, "startingTimestamp"),
        ({"maxOffsetsPerTrigger": "9" * 5_000}, "maxOffsetsPerTrigger"),
        ({"startingOffsets": '{"orders": {"0": {"ledger": 9223372036854775808, "entry": 0}}}'}, "startingOffsets"),
        ({"groupId": "g" * 1_500_000}, "groupId"),
        ({"groupId": "g\ud800"}, "groupId"),
        ({"groupId": "g\x1b[31m"}, "groupId"),
    ],
)
def test_numbers_and_names_that_no_store_holds(given: dict[str, str], option: str) -> None:
    """They are refused in a short sentence, in the driver, before a store is asked."""
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse({"subscribe": "orders", **given})
    assert refused.value.option == option
    assert len(str(refused.value)) < 500
    str(refused.value).encode()


@pytest.mark.parametrize("name", ["a" * 256, " a", "a\n", "a\ud800"])
def test_application_id_keeps_the_rules_of_names(name: str) -> None:
    """It is stored as a name."""
    with pytest.raises(InvalidOption, match="application id"):
        SinkOptions.of_stream({"topic": "orders", "txnAppId": name})
