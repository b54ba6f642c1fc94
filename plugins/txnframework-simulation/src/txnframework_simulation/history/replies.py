"""Replies to clients, and the messages and positions in them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from txnframework.model.names import PERSISTENT, TopicName, topic_of

if TYPE_CHECKING:
    from txnframework.client import Message, MessageID


NULL = "null "
"""
The prefix of a null's value in a history.

A null has no value of its own, so a header contains its name.
"""
NULL_HEADER = "null"


class MessagePosition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The place of one message: the full name of its ``segment``, and its position there."""

    segment: str
    ledger_id: int
    entry_id: int
    batch_index: int = 0

    @classmethod
    def of(cls, message_id: MessageID) -> MessagePosition:
        """Return the place of the message with a client's id."""
        at = message_id.position
        return cls(message_id.segment, at.ledger_id, at.entry_id, at.batch_index)

    @property
    def topic(self) -> str:
        """The full name of the topic that the segment belongs to."""
        return _topic(self.segment)

    def __str__(self) -> str:
        """Return the text that a client uses for a message id."""
        return f"{self.segment}@{self.ledger_id}:{self.entry_id}:{self.batch_index}"


class SeenMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """
    A message as a client received it. ``incarnation`` is that of the subscription's cursor, or 0 for a reader.

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
        """
        Return the part of a message that a history keeps.

        Key and value are text, and a header names a null.
        """
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
    """An acknowledged message, and the incarnation of the subscription's cursor under which it was received."""

    place: MessagePosition
    incarnation: int = 0

    @classmethod
    def of(cls, message: Message) -> AckedMessage:
        """Return the acknowledgment of a received message."""
        return cls(MessagePosition.of(message.id), message.incarnation)


MIGRATING = ("public", "migrating")
"""The tenant and the namespace of topics that migrate from ``persistent://`` to ``topic://``."""


@lru_cache(maxsize=4096)
def _topic(segment: str) -> str:
    topic = topic_of(segment)
    # A topic that migrates is known in a history by its former name.
    return str(TopicName(PERSISTENT, *MIGRATING, topic.name) if (topic.tenant, topic.namespace) == MIGRATING else topic)


class _Reply(msgspec.Struct, frozen=True, tag=True, tag_field="told", gc=False):
    """Base class of replies; the name of the class is stored."""


class Done(_Reply, frozen=True):
    """The operation succeeded."""


UNNAMED = "call "
"""
The prefix of the name that a history gives to a transaction whose id its caller does not know.

One call begins and ends such a transaction. The checkers replace the name by the id that clients saw at the messages.
"""


class Begun(_Reply, frozen=True):
    """A transaction has begun."""

    txn: str


class Joined(_Reply, frozen=True):
    """The number of the caller's new branch."""

    branch: int


class Sent(_Reply, frozen=True):
    """The position of the message."""

    place: MessagePosition


class Outcome(_Reply, frozen=True):
    """The state of a transaction, such as ``COMMITTED``; the refusal of a commit or abort may show it too."""

    state: str


class AckFound(_Reply, frozen=True):
    """``PENDING``, ``PENDING_ACK`` (of ``txn``) or ``DELETED``."""

    state: str
    txn: str | None = None


class Received(_Reply, frozen=True):
    """The received messages, in order."""

    messages: tuple[SeenMessage, ...]


class Changed(_Reply, frozen=True):
    """The segments that replace the split or merged ones."""

    segments: tuple[int, ...]


class Drained(_Reply, frozen=True):
    """
    All available messages, in order.

    ``trimmed``: the first remaining place of each trimmed segment; messages before it cannot be read.
    """

    messages: tuple[SeenMessage, ...]
    trimmed: tuple[MessagePosition, ...] = ()


class RowsFound(_Reply, frozen=True):
    """The keys and values of all committed rows."""

    rows: dict[str, str]


Reply = Done | Begun | Joined | Sent | Outcome | AckFound | Received | Changed | Drained | RowsFound
