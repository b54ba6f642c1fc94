"""Replies to clients, and the messages and positions in them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from txnframework.model.names import topic_of

if TYPE_CHECKING:
    from txnframework.client import Message, MessageID


NULL = "null "
"""What the value of a null begins with in a history: a null has none, and its name is in a header."""
NULL_HEADER = "null"


class MessagePosition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where one message stands: ``segment`` is its full name, the rest its position there."""

    segment: str
    ledger_id: int
    entry_id: int
    batch_index: int = 0

    @classmethod
    def of(cls, message_id: MessageID) -> MessagePosition:
        """Return the place that a client's id names."""
        at = message_id.position
        return cls(message_id.segment, at.ledger_id, at.entry_id, at.batch_index)

    @property
    def topic(self) -> str:
        """The full name of the topic that the segment belongs to."""
        return _topic(self.segment)

    def __str__(self) -> str:
        """Return it as a client writes the id of a message."""
        return f"{self.segment}@{self.ledger_id}:{self.entry_id}:{self.batch_index}"


class SeenMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """
    A message as a client received it; ``incarnation`` is that of the subscription's cursor, 0: it was read.

    ``committed`` is False only under ``read_uncommitted``.
    """

    place: MessagePosition
    value: str
    key: str | None = None
    txn: str | None = None
    incarnation: int = 0
    redelivery_count: int = 0
    committed: bool = True

    @classmethod
    def of(cls, message: Message) -> SeenMessage:
        """Return what a history keeps of a message; key and value are text, and a header names a null."""
        named = message.headers.get(NULL_HEADER, b"") if message.value is None else message.value
        return cls(
            MessagePosition.of(message.id),
            named.decode(),
            None if message.key is None else message.key.decode(),
            None if message.txn_id is None else str(message.txn_id),
            message.incarnation,
            message.redelivery_count,
            message.committed,
        )


class AckedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that is acknowledged, and under which life of the subscription's cursor it was received."""

    place: MessagePosition
    incarnation: int = 0

    @classmethod
    def of(cls, message: Message) -> AckedMessage:
        """Return how a received message is acknowledged."""
        return cls(MessagePosition.of(message.id), message.incarnation)


@lru_cache(maxsize=4096)
def _topic(segment: str) -> str:
    return str(topic_of(segment))


class _Reply(msgspec.Struct, frozen=True, tag=True, tag_field="told", gc=False):
    """Base class of replies; the name of the class is stored."""


class Done(_Reply, frozen=True):
    """The operation succeeded."""


class Begun(_Reply, frozen=True):
    """A transaction has begun."""

    txn: str


class Joined(_Reply, frozen=True):
    """The number of one's own branch."""

    branch: int


class Sent(_Reply, frozen=True):
    """The position of the message."""

    place: MessagePosition


class Outcome(_Reply, frozen=True):
    """The state of a transaction, such as ``COMMITTED``; also what the refusal of a commit or abort told."""

    state: str


class AckFound(_Reply, frozen=True):
    """``PENDING``, ``PENDING_ACK`` (of ``txn``) or ``DELETED``."""

    state: str
    txn: str | None = None


class Received(_Reply, frozen=True):
    """The received messages, in order."""

    messages: tuple[SeenMessage, ...]


class Changed(_Reply, frozen=True):
    """The segments that now take messages instead."""

    segments: tuple[int, ...]


class Drained(_Reply, frozen=True):
    """
    Everything that was there, in order.

    ``trimmed``: for each segment that was trimmed, the first place that is left; nothing before it can be read.
    """

    messages: tuple[SeenMessage, ...]
    trimmed: tuple[MessagePosition, ...] = ()


Reply = Done | Begun | Joined | Sent | Outcome | AckFound | Received | Changed | Drained
