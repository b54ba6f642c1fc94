"""The topics that a load reads: ``subscribe``, ``subscribePattern`` or ``assign``, as with Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from txnframework.errors import excerpt
from txnframework.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, SEGMENT_ID_MAX, TOPIC, TopicName
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.given import GivenOptions, topic_of

CHOICE_OPTIONS: Final = ("subscribe", "topics", "topic", "subscribePattern", "topicsPattern", "assign")

_Assigned = dict[
    str, Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=SEGMENT_ID_MAX)]], msgspec.Meta(min_length=1)]
]


@dataclass(frozen=True, slots=True)
class Choice:
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

    Names are untrusted data: with Python's ``re``, one long name and ``(a+)+`` could block a query for ever.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason,) = error.args
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{told[:100]}..." if len(told) > 100 else told) from error


def choice_of(options: GivenOptions) -> Choice:
    """Return the choice that the options make; InvalidOption if none or more than one is given."""
    given = [name for name in CHOICE_OPTIONS if options.text(name) is not None]
    if not given:
        raise InvalidOption(
            "subscribe",
            "it is missing; name what to read by subscribe (topics, separated by commas), subscribePattern or assign",
        )
    if len(given) > 1:
        raise InvalidOption(given[1], f"the option {given[0]} already says what to read; keep one of the two")
    name, text = given[0], options.required(given[0], "what to read")
    if name == "topic":
        return Choice((topic_of(name, text),))
    if name in ("subscribe", "topics"):
        return Choice(_each_once(name, [topic_of(name, one) for one in text.split(",") if one.strip()]))
    if name == "assign":
        return _assigned(text)
    try:
        compiled(text)
    except ValueError as error:
        raise InvalidOption(
            name, f"{excerpt(text)} is not a regular expression as RE2 knows them, without lookaround: {error}"
        ) from error
    return Choice(pattern=text)


def _assigned(text: str) -> Choice:
    try:
        table = msgspec.json.decode(text, type=_Assigned)
    except msgspec.DecodeError as error:
        form = '{"orders": [0, 2]}, segment ids by topic'
        raise InvalidOption("assign", f"expected JSON like {form}; {error}") from error
    topics = _each_once("assign", [topic_of("assign", name) for name in table])
    return Choice(topics, assigned={topic_of("assign", name): frozenset(ids) for name, ids in table.items()})


def _each_once(option: str, topics: list[TopicName]) -> tuple[TopicName, ...]:
    if not topics:
        raise InvalidOption(option, "it names no topic")
    if len(set(topics)) != len(topics):
        raise InvalidOption(option, "it names a topic twice")
    return tuple(topics)
