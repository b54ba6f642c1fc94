"""What a load reads: its topics, and where reading begins and ends.

Topics are chosen as in Spark's Kafka source: by ``subscribe``, ``subscribePattern`` or ``assign``. Both
``startingOffsets`` and ``endingOffsets`` are ``earliest``, ``latest``, or JSON by topic and segment id::

    {"orders": {"0": {"ledger": 0, "entry": 41, "index": 3}, "1": "earliest", "2": "latest"}}

A position has the form that the column ``offset`` shows; ``index`` may be omitted. As in Kafka, a start is inclusive
and an end is exclusive. A segment that is not named is read from its beginning, or to its end. The parents of a named
segment, from which it was split or merged, are not read. ``startingTimestamp`` and ``endingTimestamp`` name one time
for all segments instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from txnframework.errors import excerpt
from txnframework.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, SEGMENT_ID_MAX, TOPIC, TopicName
from txnframework.model.positions import Position
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.parser import INT64_MAX, OptionParser, parse_topic

CHOICE_OPTIONS: Final = ("subscribe", "topics", "topic", "subscribePattern", "topicsPattern", "assign")
START_OPTIONS: Final = ("startingOffsets", "startingTimestamp")
END_OPTIONS: Final = ("endingOffsets", "endingTimestamp")

_Assigned = dict[
    str, Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=SEGMENT_ID_MAX)]], msgspec.Meta(min_length=1)]
]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Topics by name, or all topics that match ``pattern``; ``assigned`` restricts a topic to these segment ids."""

    topics: tuple[TopicName, ...] = ()
    pattern: str | None = None
    assigned: Mapping[TopicName, frozenset[int]] = field(default_factory=dict)

    def includes(self, topic: TopicName) -> bool:
        """Return whether the topic is chosen."""
        return topic in self.topics if self.pattern is None else self.matches(topic)

    def matches(self, topic: TopicName) -> bool:
        """Return whether the pattern matches a full or shortened name of the topic completely."""
        assert self.pattern is not None
        names = [str(topic), f"{topic.tenant}/{topic.namespace}/{topic.name}"]
        if (topic.tenant, topic.namespace) == (DEFAULT_TENANT, DEFAULT_NAMESPACE):
            names.append(topic.name)
        found = compiled(self.pattern)
        return topic.domain == TOPIC and any(found.fullmatch(name) for name in names)


@lru_cache(16)
def compiled(pattern: str) -> Any:
    """
    Return a compiled regular expression that matches in time linear in the name's length; ValueError if it is invalid.

    Names are untrusted data: with Python's ``re``, one long name and ``(a+)+`` could block a query without end.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason,) = error.args
        message = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{message[:100]}..." if len(message) > 100 else message) from error


def parse_selection(options: OptionParser) -> TopicSelection:
    """Return the choice that the options make; InvalidOption if none or more than one is given."""
    given = [name for name in CHOICE_OPTIONS if options.text(name) is not None]
    if not given:
        raise InvalidOption(
            "subscribe",
            "it is missing; choose what to read by subscribe (topics, separated by commas), subscribePattern or assign",
        )
    if len(given) > 1:
        raise InvalidOption(given[1], f"option {given[0]} already chooses what to read; remove one of the two")
    name, text = given[0], options.required(given[0], "what to read")
    if name == "topic":
        return TopicSelection((parse_topic(name, text),))
    if name in ("subscribe", "topics"):
        return TopicSelection(_each_once(name, [parse_topic(name, one) for one in text.split(",") if one.strip()]))
    if name == "assign":
        return _assigned(text)
    try:
        compiled(text)
    except ValueError as error:
        raise InvalidOption(
            name, f"{excerpt(text)} is not a valid RE2 regular expression (RE2 has no lookaround): {error}"
        ) from error
    return TopicSelection(pattern=text)


def _assigned(text: str) -> TopicSelection:
    try:
        table = msgspec.json.decode(text, type=_Assigned)
    except msgspec.DecodeError as error:
        form = '{"orders": [0, 2]}, segment ids by topic'
        raise InvalidOption("assign", f"expected JSON like {form}; {error}") from error
    topics = _each_once("assign", [parse_topic("assign", name) for name in table])
    return TopicSelection(topics, assigned={parse_topic("assign", name): frozenset(ids) for name, ids in table.items()})


def _each_once(option: str, topics: list[TopicName]) -> tuple[TopicName, ...]:
    if not topics:
        raise InvalidOption(option, "it names no topic")
    if len(set(topics)) != len(topics):
        raise InvalidOption(option, "it names a topic twice")
    return tuple(topics)


class Edge(Enum):
    """The beginning of the stored messages, or their end when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


Bound = Edge | Position
"""An edge, or the position of a message, with index."""

_FORM: Final = '{"orders": {"0": "earliest", "1": {"ledger": 0, "entry": 41}}}'
_Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    ledger: _Natural
    entry: _Natural
    index: _Natural = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Places ``named`` by topic and segment id, ``everywhere`` for the rest; or one time for all segments."""

    default: Edge
    named: Mapping[TopicName, Mapping[int, Bound]] = field(default_factory=dict)
    at_ms: int | None = None

    @property
    def edge(self) -> Edge | None:
        """The edge that applies to all segments; None if a position or a time is named."""
        return None if self.named or self.at_ms is not None else self.default


def parse_bounds(options: OptionParser, side: str, selection: TopicSelection) -> Bounds | None:
    """Return the places of ``startingOffsets`` or ``startingTimestamp``, if given; or those of side ``ending``."""
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    rest = Edge.EARLIEST if side == "starting" else Edge.LATEST
    text, at_ms = options.text(offsets), options.number(timestamp, 0, ", milliseconds since 1970")
    if at_ms is not None:
        if text is not None:
            raise InvalidOption(timestamp, f"{offsets} is set as well; remove one of the two")
        return Bounds(rest, at_ms=at_ms)
    if text is None:
        return None
    if text.strip().startswith("{"):
        return _named_bounds(offsets, text, rest, selection)
    return Bounds(Edge(options.one_of(offsets, tuple(edge.value for edge in Edge), f" or JSON like {_FORM}")))


def _named_bounds(option: str, text: str, rest: Edge, selection: TopicSelection) -> Bounds:
    try:
        table = msgspec.json.decode(text, type=dict[str, dict[_Natural, Edge | _Written]])
    except msgspec.DecodeError as error:
        raise InvalidOption(option, f"expected JSON like {_FORM}; {error}") from error
    named: dict[TopicName, dict[int, Bound]] = {}
    for name, segments in table.items():
        named[parse_topic(option, name)] = {
            number: place if isinstance(place, Edge) else Position(place.ledger, place.entry, place.index)
            for number, place in segments.items()
        }
    for topic, places in named.items():
        if topic not in selection.topics if selection.pattern is None else not selection.matches(topic):
            raise InvalidOption(option, f"it names {topic}, which is not read; remove it")
        stray = sorted(places.keys() - selection.assigned.get(topic, places.keys()))
        if stray:
            raise InvalidOption(
                option, f"it names segment {stray[0]} of {topic}, which assign does not name; remove it"
            )
    missing = [topic for topic in selection.topics if topic not in named]
    if missing:
        raise InvalidOption(option, f'it does not name {missing[0]}; add "{missing[0]}": {{}} to read all of it')
    return Bounds(rest, named)
