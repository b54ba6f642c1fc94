"""Messages and message ids, as consumers and readers return them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec

from txnframework.broker import HeldMessage
from txnframework.client._content_types import T_co
from txnframework.errors import InvalidInput, InvalidName, UndecodableMessage, excerpt
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch, TxnID
from txnframework.model.names import parse_name
from txnframework.model.positions import Position
from txnframework.serializers import SCHEMA_HEADER

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


class MessageID(msgspec.Struct, frozen=True, gc=False):
    """
    The place of a message: ``position`` in ``segment`` (the segment's full name).

    The ids of one segment have the order of its messages. Ids of different segments have no order: ``<`` raises
    TypeError.
    """

    segment: str
    position: Position

    def __lt__(self, other: MessageID) -> bool:
        return self._compared(other) and self.position < other.position

    def __le__(self, other: MessageID) -> bool:
        return self._compared(other) and self.position <= other.position

    def __gt__(self, other: MessageID) -> bool:
        return self._compared(other) and self.position > other.position

    def __ge__(self, other: MessageID) -> bool:
        return self._compared(other) and self.position >= other.position

    def _compared(self, other: object) -> bool:
        """Return True, or raise TypeError if the two ids have no order."""
        if not isinstance(other, MessageID):
            raise TypeError(f"a message's id is compared with another one, not with a {type(other).__name__}")
        if self.segment != other.segment:
            raise TypeError(f"{self} and {other} are of two segments, and messages are in order within one only")
        return True

    def __str__(self) -> str:
        """Return the text form ``<segment>@<ledger>:<entry>:<index>``."""
        return f"{self.segment}@{self.position}"

    @classmethod
    def parse(cls, text: str) -> MessageID:
        """
        Return the id for a text that ``str`` produced.

        :raises InvalidInput: the text is not a message id.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"the id of a message is text here, not {excerpt(text)}")
        segment, _, written = text.rpartition("@")
        try:
            position = Position.parse(written)
            if position.entry_id < 0:  # the position before the first entry, which has no predecessor
                raise ValueError(f"{written} is not the position of a message")
            return cls(str(parse_name(segment)), position)
        except (InvalidName, ValueError) as error:
            raise InvalidInput(
                f"{excerpt(text)} is not the id of a message, which is written as <segment>@<ledger>:<entry>:<index>"
            ) from error


def check_message_id(given: object) -> MessageID:
    """Return the id that a caller passed, or raise InvalidInput if it is not an id or cannot be stored."""
    if not isinstance(given, MessageID):
        raise InvalidInput(f"the id of a message is expected, as Message.id is, not {excerpt(given)}")
    try:
        return MessageID.parse(str(given))
    except ValueError as error:  # a number that Python does not write in digits
        raise InvalidInput("the id of a message holds a number that no store can hold") from error


@dataclass(frozen=True, slots=True)
class Message(Generic[T_co]):
    """
    A received message, with a content of type ``T_co``; without a serializer, ``Message`` means ``Message[bytes]``.

    * ``value``: None is a null, which differs from an empty value; it deletes the message's key.
    * ``published_ms``: the sender's clock, in ms since 1970.
    * ``producer``, ``sequence_id``: the producer's name, and the message's number among those of that producer.
    * ``redelivery_count``: how often the message was delivered to this subscription before.
    * ``txn_id``: the transaction that sent it; None if it was sent outside transactions.
    * ``committed``: False only under ``read_uncommitted``.
    """

    topic: str
    id: MessageID
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    published_ms: int
    producer: str
    sequence_id: int
    redelivery_count: int = 0
    txn_id: TxnID | None = None
    committed: bool = True
    # Needed to acknowledge the message: the size of its batch, and the incarnation of the cursor that delivered it.
    _batch_size: int = field(default=1, repr=False, compare=False)
    _incarnation: int = field(default=0, repr=False, compare=False)
    # The lease under which it was delivered; None if it was not delivered, or only its id is known.
    _tenure: object = field(default=None, repr=False, compare=False)
    # The subscription that it was delivered to; empty from a reader, or if only its id is known.
    _subscription: str = field(default="", repr=False, compare=False)

    @property
    def content(self) -> T_co:
        """
        The value as the serializer of the consumer or reader decodes it; without a serializer, ``value`` itself.

        The value is decoded on first use. So a message whose value is not valid can be received and acknowledged.

        :raises UndecodableMessage: the value is not valid, the message has another schema id, or ``value`` is None.
        """
        if self.value is None:
            raise self._undecodable(IS_NULL)
        return self.value  # type: ignore[return-value]

    @property
    def schema_id(self) -> str | None:
        """The schema id that the producer's serializer stored with the message; None if there is none."""
        stored = self.headers.get(SCHEMA_HEADER)
        return None if stored is None else stored.decode(errors="backslashreplace")

    def _undecodable(self, reason: str) -> UndecodableMessage:
        return UndecodableMessage(self.topic, self.id.segment, self.id.position, self.schema_id, reason)

    @property
    def batch_size(self) -> int:
        """The number of messages in the same entry."""
        return self._batch_size

    @property
    def incarnation(self) -> int:
        """The incarnation of the cursor that delivered the message; 0 if a reader returned it."""
        return self._incarnation

    @property
    def tenure(self) -> object:
        """
        The lease under which it was delivered, compared by identity; None from a reader, or if only its id is known.
        """
        return self._tenure

    @property
    def subscription(self) -> str:
        """The subscription that it was delivered to; empty from a reader, or if only its id is known."""
        return self._subscription


IS_NULL: Final = "it is a null, which has no content and deletes its key; its value is None"
_NOT_DECODED: Final = object()


@dataclass(frozen=True, slots=True)
class DecodedMessage(Message[T_co]):
    """A message whose content a serializer decodes."""

    _serializer: Serializer[T_co] | None = field(default=None, repr=False, compare=False)
    _content: object = field(default=_NOT_DECODED, repr=False, compare=False)

    @property
    def content(self) -> T_co:
        """The decoded value; see ``Message.content``."""
        if self._content is _NOT_DECODED:
            object.__setattr__(self, "_content", self._decode())
        return self._content  # type: ignore[return-value]

    def _decode(self) -> T_co:
        value, asked, schema_id = self.value, self._serializer, self.schema_id
        assert asked is not None, "with_content sets it"
        if value is None:
            raise self._undecodable(IS_NULL)
        chosen = asked.for_schema(schema_id)
        if chosen is None:
            known = " and ".join(one.schema_id or "messages without a schema id" for one in asked.alternatives())
            raise self._undecodable(f"the serializer decodes {known}")
        try:
            return chosen.decode(value)
        except Exception as error:
            reason = chosen.explain(error)
        # Raised here and not above: as its context, the error of the serializer could show the value.
        raise self._undecodable(reason)


_FIELDS: Final = tuple(one.name for one in fields(Message))


def with_content(message: Message[Any], serializer: Serializer[T_co]) -> Message[T_co]:
    """Return the message, with a content that ``serializer`` decodes."""
    values: list[Any] = [*(getattr(message, name) for name in _FIELDS), serializer]
    return DecodedMessage(*values)


@dataclass(frozen=True, slots=True)
class EntryOrigin:
    """The values that all messages of one entry share."""

    topic: str
    segment: str
    producer: str
    branch: Branch | None
    batch_size: int
    committed: bool = True


def message_of(
    origin: EntryOrigin,
    position: Position,
    content: EntryMessage,
    redelivery_count: int = 0,
    incarnation: int = 0,
    tenure: object = None,
    subscription: str = "",
) -> Message:
    """Return a stored message in its public form; ``position`` includes its batch index."""
    return Message(
        topic=origin.topic,
        id=MessageID(origin.segment, position),
        key=content.key,
        value=content.value,
        headers=MappingProxyType(dict(content.headers)),
        published_ms=content.published_ms,
        producer=origin.producer,
        sequence_id=content.sequence_id,
        redelivery_count=redelivery_count,
        txn_id=None if origin.branch is None else origin.branch.txn_id,
        committed=origin.committed,
        _batch_size=origin.batch_size,
        _incarnation=incarnation,
        _tenure=tenure,
        _subscription=subscription,
    )


def received(
    topic: str,
    segment: str,
    subscription: str,
    held: HeldMessage,
    redelivery_count: int,
    incarnation: int,
    tenure: object = None,
) -> Message:
    """Return a message of a subscription in its public form; ``tenure`` is None if it was only peeked at."""
    origin = EntryOrigin(topic, segment, held.producer, held.branch, held.batch_size)
    return message_of(origin, held.position, held.message, redelivery_count, incarnation, tenure, subscription)


def by_segment(messages: Iterable[Message]) -> dict[str, list[Message]]:
    """Return messages grouped by segment."""
    found: dict[str, list[Message]] = {}
    for message in messages:
        found.setdefault(message.id.segment, []).append(message)
    return found
