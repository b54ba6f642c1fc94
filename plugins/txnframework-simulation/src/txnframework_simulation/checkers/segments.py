"""The order of segments, derived from their names."""

from __future__ import annotations

from functools import lru_cache

from txnframework.model.names import PERSISTENT, TOPIC, SegmentName, TopicName, parse_name
from txnframework_simulation.history import MessagePosition


@lru_cache(maxsize=4096)
def number_of(segment: str) -> int:
    """
    Return a segment's number in its topic.

    Of two segments that share a hash value, the later one has the higher number.
    """
    name = parse_name(segment)
    return name.segment_id if isinstance(name, SegmentName) else 0


@lru_cache(maxsize=65536)
def descends(segment: str, other: str) -> bool:
    """
    Whether ``segment`` descends from ``other`` by splits and merges.

    At any time each hash value belongs to one segment. So two segments that share a hash value existed one after the
    other.
    """
    one, two = parse_name(segment), parse_name(other)
    if isinstance(one, SegmentName) and isinstance(two, TopicName):
        # The segment of a persistent topic is the ancestor of all segments of the topic that it has become.
        return two.domain == PERSISTENT and one.topic == TopicName(TOPIC, two.tenant, two.namespace, two.name)
    if not (isinstance(one, SegmentName) and isinstance(two, SegmentName)) or one.topic != two.topic:
        return False
    return one.start <= two.end and two.start <= one.end and one.segment_id > two.segment_id


def along(place: MessagePosition) -> tuple[int, int, int, int]:
    """Return a sort key for the places of one key, whose segments follow each other."""
    return (number_of(place.segment), place.ledger_id, place.entry_id, place.batch_index)
