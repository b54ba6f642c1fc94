"""What everything that a client can be asked stands on."""

from __future__ import annotations

from txnframework.broker import Host, Topics
from txnframework.client._closing import require_open
from txnframework.client._retrying import Retrying
from txnframework.errors import InvalidInput
from txnframework.model.names import SegmentName, TopicName, parse_name


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

    @staticmethod
    def _topic(text: str) -> TopicName:
        name = parse_name(text)
        if isinstance(name, SegmentName):
            raise InvalidInput(f"{text} is a segment; name its topic, {name.topic}")
        return name


def check_subscription(name: str, start: str) -> None:
    """Refuse a subscription without a name, or a start that there is not."""
    if not name:
        raise InvalidInput("a subscription needs a name")
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"a subscription starts at 'earliest' or 'latest', not at {start!r}")
