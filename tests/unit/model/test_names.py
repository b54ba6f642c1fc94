from __future__ import annotations

import pytest

from txnframework.errors import InvalidName
from txnframework.model.names import SegmentName, TopicName, parse_name, segment_id_of, topic_of

TOPICS = [
    ("topic://public/default/ratings", TopicName("topic", "public", "default", "ratings")),
    ("persistent://tenant/ns/name", TopicName("persistent", "tenant", "ns", "name")),
    ("topic://a/b/été 🚲", TopicName("topic", "a", "b", "été 🚲")),
    ("topic://a:b/%/..", TopicName("topic", "a:b", "%", "..")),
    ("topic://topic:/b/-0000-ffff-0", TopicName("topic", "topic:", "b", "-0000-ffff-0")),
]

SEGMENTS = [
    ("segment://public/default/ratings/0000-ffff-0", SegmentName("public", "default", "ratings", 0, 0xFFFF, 0)),
    ("segment://a/b/c/8000-8000-17", SegmentName("a", "b", "c", 0x8000, 0x8000, 17)),
    (f"segment://a/b/ä-1/00ff-0a00-{2**63 - 1}", SegmentName("a", "b", "ä-1", 0xFF, 0xA00, 2**63 - 1)),
]

BAD_TOPICS = {
    "": "its name is empty",
    "a/b": "it has 2 parts",
    "a/b/c/d": "it has 4 parts",
    "topic://ratings": "it has 1 part;",
    "topic://a/b": "it has 2 parts",
    "topic://a/b/c/": "it has 4 parts",
    "topic:///b/c": "its tenant is empty",
    "topic://a//c": "its namespace is empty",
    "topic://a/b/": "its name is empty",
    "non-persistent://a/b/c": "its domain 'non-persistent' is not that of a topic",
    "TOPIC://a/b/c": "its domain 'TOPIC' is not that of a topic",
    "://a/b/c": "its domain '' is not that of a topic",
    "segment://a/b/c/0000-ffff-0": "it names a segment, not a topic",
    "topic://a/b/c\n": "its name contains the control character U+000A",
    "topic://a\x00/b/c": "its tenant contains the control character U+0000",
    "a/b\x85/c": "its namespace contains the control character U+0085",
    "a\u2028b": "its name contains the control character U+2028",
    "a\ud800b": "its name contains the control character U+D800",
}

BAD_SEGMENTS = {
    "segment://a/b/c": "it does not name a segment",
    "segment://a/b/c/d/0000-ffff-0": "it does not name a segment",
    "segment://a/b/c/": "its last part",
    "segment://a/b/c/0000-ffff": "its last part",
    "segment://a/b/c/0-ffff-0": "its last part",
    "segment://a/b/c/0000-FFFF-0": "its last part",
    "segment://a/b/c/0000-ffff-00": "its last part",
    "segment://a/b/c/0000-ffff--1": "its last part",
    "segment://a/b/c/0000-ffff-0\n": "its last part",
    "segment://a/b/c/0000-ffff-٣": "its last part",
    "segment://a/b/c/0000-ffff-10000000000000000000": "its last part",
    "segment://a/b/c/0000-ffff-9999999999999999999": "its segment id",
    "segment://a/b/c/8000-7fff-0": "its hash range",
    "segment://a//c/0000-ffff-0": "its namespace is empty",
}


@pytest.mark.parametrize(("text", "topic"), TOPICS)
def test_a_full_topic_name_round_trips(text: str, topic: TopicName) -> None:
    """``parse`` reverses ``str``, also with special characters."""
    assert TopicName.parse(text) == topic
    assert str(topic) == text
    assert parse_name(text) == topic


@pytest.mark.parametrize(("text", "segment"), SEGMENTS)
def test_a_segment_name_round_trips(text: str, segment: SegmentName) -> None:
    """The hash range has four hex digits a side, the id is decimal."""
    assert SegmentName.parse(text) == segment
    assert str(segment) == text
    assert parse_name(text) == segment


def test_short_forms_expand_to_scalable_topics() -> None:
    """A lone name lives in public/default; three parts without a domain are a topic:// name."""
    assert str(TopicName.parse("ratings")) == "topic://public/default/ratings"
    assert str(TopicName.parse("movies/prod/ratings")) == "topic://movies/prod/ratings"
    assert parse_name("ratings") == TopicName("topic", "public", "default", "ratings")


@pytest.mark.parametrize("text", BAD_TOPICS)
def test_what_is_no_topic_name_is_refused(text: str) -> None:
    """The error quotes the input and says what is wrong."""
    with pytest.raises(InvalidName) as caught:
        TopicName.parse(text)
    assert caught.value.name == text
    assert caught.value.reason.startswith(BAD_TOPICS[text])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", BAD_SEGMENTS)
def test_what_is_no_segment_name_is_refused(text: str) -> None:
    """One segment has one spelling: no upper case, no leading zero, no other script's digits."""
    with pytest.raises(InvalidName) as caught:
        parse_name(text)
    assert caught.value.name == text
    assert caught.value.reason.startswith(BAD_SEGMENTS[text])


def test_an_invalid_name_cannot_be_constructed() -> None:
    """Names made from parts obey the rules of the text form."""
    for parts in (("segment", "a", "b", "c"), ("topic", "a/b", "c", "d"), ("topic", "", "c", "d")):
        with pytest.raises(InvalidName):
            TopicName(*parts)
    for start, end, segment_id in ((1, 0, 0), (0, 0x10000, 0), (-1, 5, 0), (0, 5, -1), (0, 5, 2**63)):
        with pytest.raises(InvalidName):
            SegmentName("a", "b", "c", start, end, segment_id)


def test_a_segment_knows_its_topic_and_range() -> None:
    """A segment belongs to a topic:// topic, and covers both ends of its range."""
    segment = SegmentName.parse("segment://a/b/c/4000-7fff-3")
    assert segment.topic == TopicName("topic", "a", "b", "c")
    assert [segment.covers(value) for value in (0x3FFF, 0x4000, 0x7FFF, 0x8000)] == [False, True, True, False]


def test_a_segments_topic_and_number() -> None:
    """A segment belongs to its topic; a persistent topic's only segment, number 0, is the topic itself."""
    segment = "segment://a/b/c/8000-ffff-17"
    assert (str(topic_of(segment)), segment_id_of(parse_name(segment))) == ("topic://a/b/c", 17)
    topic = "persistent://a/b/c"
    assert (str(topic_of(topic)), segment_id_of(parse_name(topic))) == (topic, 0)
    assert parse_name(segment).topic == TopicName.parse("a/b/c").topic


@pytest.mark.parametrize(
    ("name", "internal"),
    [
        ("__changes", True),
        ("persistent://public/default/__changes", True),
        ("topic://public/__system/changes", True),
        ("__txn/logs/0", True),
        ("_changes", False),
        ("changes__", False),
        ("public/de__fault/_-_", False),
    ],
)
def test_names_kept_for_internal_topics(name: str, internal: bool) -> None:
    """One rule: the topic's name, its namespace's or its tenant's begins with two underscores."""
    assert TopicName.parse(name).internal is internal
