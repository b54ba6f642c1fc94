"""Where reading begins and ends: ``startingOffsets`` and ``endingOffsets``, or ``startingTimestamp`` and so on.

Both are ``earliest``, ``latest``, or JSON by topic and segment id::

    {"orders": {"0": {"ledger": 0, "entry": 41, "index": 3}, "1": "earliest", "2": "latest"}}

A position has the form that the column ``offset`` shows; ``index`` may be omitted. As in Kafka, a start is inclusive
and an end is exclusive. A segment that is not named is read from its beginning, or to its end. The parents of a named
segment, from which it was split or merged, are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

import msgspec

from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.choice import Choice
from txnframework_spark.options.given import INT64_MAX, GivenOptions, topic_of


class Edge(Enum):
    """The beginning of the stored messages, or their end when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


Place = Edge | Position
"""An edge, or the position of a message, with index."""

_FORM: Final = '{"orders": {"0": "earliest", "1": {"ledger": 0, "entry": 41}}}'
_Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    ledger: _Natural
    entry: _Natural
    index: _Natural = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Places ``named`` by topic and segment id, ``everywhere`` for the rest; or one time for all segments."""

    everywhere: Edge
    named: Mapping[TopicName, Mapping[int, Place]] = field(default_factory=dict)
    at_ms: int | None = None

    @property
    def edge(self) -> Edge | None:
        """The edge that applies to all segments; None if a position or a time is named."""
        return None if self.named or self.at_ms is not None else self.everywhere


def places_of(options: GivenOptions, side: str, choice: Choice) -> Places | None:
    """Return the places of ``startingOffsets`` or ``startingTimestamp``, if given; or those of side ``ending``."""
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    rest = Edge.EARLIEST if side == "starting" else Edge.LATEST
    text, at_ms = options.text(offsets), options.number(timestamp, 0, ", milliseconds since 1970")
    if at_ms is not None:
        if text is not None:
            raise InvalidOption(timestamp, f"{offsets} already says where; keep one of the two")
        return Places(rest, at_ms=at_ms)
    if text is None:
        return None
    if text.strip().startswith("{"):
        return _named(offsets, text, rest, choice)
    return Places(
        Edge(options.one_of(offsets, tuple(edge.value for edge in Edge), rest.value, f" or JSON like {_FORM}"))
    )


def _named(option: str, text: str, rest: Edge, choice: Choice) -> Places:
    try:
        table = msgspec.json.decode(text, type=dict[str, dict[_Natural, Edge | _Written]])
    except msgspec.DecodeError as error:
        raise InvalidOption(option, f"expected JSON like {_FORM}; {error}") from error
    named: dict[TopicName, dict[int, Place]] = {}
    for name, segments in table.items():
        named[topic_of(option, name)] = {
            number: place if isinstance(place, Edge) else Position(place.ledger, place.entry, place.index)
            for number, place in segments.items()
        }
    for topic, places in named.items():
        if topic not in choice.topics if choice.pattern is None else not choice.matches(topic):
            raise InvalidOption(option, f"it names {topic}, which is not among what is read; leave it out")
        stray = sorted(places.keys() - choice.assigned.get(topic, places.keys()))
        if stray:
            raise InvalidOption(option, f"it names segment {stray[0]} of {topic}, which assign does not; leave it out")
    missing = [topic for topic in choice.topics if topic not in named]
    if missing:
        raise InvalidOption(option, f'it does not name {missing[0]}; add "{missing[0]}": {{}} for all of it')
    return Places(rest, named)
