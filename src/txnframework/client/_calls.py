"""What everything that a client can be asked stands on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from txnframework.broker import Host, Topics
from txnframework.client._closing import require_open
from txnframework.client._retrying import Retrying
from txnframework.errors import InvalidInput, excerpt
from txnframework.model.names import SegmentName, TopicName, check_known_name, parse_name

SUBSCRIPTION_NAME = "subscription name"

Name = str | TopicName | SegmentName
"""How callers name a topic or a segment: by a text, or by what ``Layout.name_of`` returns."""

T = TypeVar("T")


class Calls:
    """A host, and how calls to it are tried again; the parts of ``Client`` are made of it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._retrying = Retrying(host.environment, host.config.client)

    @property
    def host(self) -> Host:
        """
        What this client stands on, for programs that embed more of it.

        :raises Closed: the client was closed.
        """
        require_open(self._host)
        return self._host

    @property
    def topics(self) -> Topics:
        """The topics and their layouts."""
        return self.host.topics

    async def _finish(self, topic: TopicName, work: Callable[[], Awaitable[T]]) -> T:
        """Do something to a topic, to its end, though the caller be cancelled; after what was cancelled before it."""
        return await self.host.steps.finish(work, (str(topic),))

    @staticmethod
    def _topic(given: Name) -> TopicName:
        name = name_from(given)
        if isinstance(name, SegmentName):
            raise InvalidInput(f"{name} is a segment; name its topic, {name.topic}")
        return name


def name_from(given: Name) -> TopicName | SegmentName:
    """
    Return the topic or segment that a caller named.

    :raises InvalidName: there can be none of that name.
    """
    return given if isinstance(given, TopicName | SegmentName) else parse_name(given)


def check_subscription(name: object, start: object = "earliest") -> None:
    """Refuse a name that no subscription can have, or an invalid start."""
    check_known_name(name, SUBSCRIPTION_NAME)
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"a subscription starts at 'earliest' or 'latest', not at {excerpt(start)}")
