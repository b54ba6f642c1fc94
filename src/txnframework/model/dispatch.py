"""Values of the dispatcher role."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NewType

import msgspec

from txnframework.model.positions import Position

StandardType = Literal["exclusive", "failover", "shared", "key_shared"]
"""The names of the standard subscription types."""
OtherType = NewType("OtherType", str)
"""The name of a subscription type that another dispatcher brings, as in ``OtherType("relay")``."""
TypeName = StandardType | OtherType

DEFAULT_TYPE: Final = "exclusive"
"""The subscription type of consumers that do not name one."""


class Ordering(StrEnum):
    """Which of a segment's messages a subscription type keeps in order."""

    NONE = "none"
    KEY = "key"
    """The messages of one key; messages without a key are in no order."""
    SEGMENT = "segment"
    """All messages."""


class SubscriptionType(msgspec.Struct, frozen=True, gc=False):
    """A subscription type: the name that clients request, and what its dispatcher declares; see ``IDispatcher``."""

    name: str
    ordering: Ordering
    stands_by: bool

    @property
    def shares(self) -> bool:
        """
        Whether processes divide a topic's segments among them.

        They do unless the type keeps everything in order for one consumer only, and refuses the others.
        """
        return self.stands_by or self.ordering is not Ordering.SEGMENT


class ConsumerInfo(msgspec.Struct, frozen=True, gc=False):
    """A consumer as a dispatcher sees it; ``permits``: the number of messages that it can take now."""

    consumer_id: int
    name: str
    priority: int = 0
    permits: int = 0


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A message that waits for a consumer; ``key`` None: it needs no order."""

    position: Position
    key: bytes | None
    redelivery_count: int


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The assignment of the message at ``position`` to ``consumer_id``."""

    consumer_id: int
    position: Position
