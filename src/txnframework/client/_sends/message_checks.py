"""What the messages of one call share, and the checks before they share an entry with other messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context

import msgspec

from txnframework.client._arguments import INT64_MAX, whole_number
from txnframework.client._sends.batches import size_of
from txnframework.client._sends.encoded_values import HeaderPairs, largest_headers
from txnframework.errors import InvalidInput
from txnframework.model.entries import EntryMessage


class SharedFields(msgspec.Struct, frozen=True, gc=False):
    """What all messages of a call share; ``sequence_id`` is that of the first one, or None if the producer counts."""

    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    sequence_id: int | None


class UnnumberedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that has its sequence id only if the caller has chosen one."""

    key: bytes | None
    value: bytes | None
    headers: HeaderPairs
    sequence_id: int | None


class PreparedMessages(msgspec.Struct, frozen=True, gc=False):
    """
    Encoded and checked messages of one call.

    ``tagged``: the headers of each message, if they have schema ids; otherwise all have the headers in ``common``.
    ``bytes_left``: by how many bytes the largest message may still grow. ``context``: that of the caller who planned
    them, in which their send is reported; None: they are sent where they are prepared.
    """

    values: Sequence[bytes | None]
    common: SharedFields
    tagged: Sequence[HeaderPairs] | None
    bytes_left: int
    context: Context | None = None

    def each(self) -> list[UnnumberedMessage]:
        """Return the messages, each with its own fields."""
        key, headers, first = self.common.key, self.common.headers, self.common.sequence_id
        return [
            UnnumberedMessage(
                key,
                value,
                headers if self.tagged is None else self.tagged[number],
                None if first is None else first + number,
            )
            for number, value in enumerate(self.values)
        ]


def check_messages(
    values: Sequence[bytes | None],
    common: SharedFields,
    tagged: Sequence[HeaderPairs] | None,
    message_bytes_max: int,
) -> int:
    """
    Return by how many bytes the largest message may still grow.

    :param tagged: the headers of each message; None: all have the headers in ``common``.
    :param message_bytes_max: the size of the largest message in bytes, with its headers.
    :raises InvalidInput: a message cannot be stored.
    """
    longest = 0
    for value in values:
        if isinstance(value, bytes):
            longest = max(longest, len(value))
        elif value is not None:
            raise _no_bytes("value", value, "encode it, or give the producer a serializer")
    if not isinstance(common.key, bytes | None):
        raise _no_bytes("key", common.key, "encode it")
    further = max(0, len(values) - 1)
    if common.sequence_id is not None:
        whole_number(common.sequence_id, "sequence_id", 0, INT64_MAX - further)
    headers = common.headers if tagged is None else largest_headers(tagged)
    size = longest + size_of(EntryMessage(common.key, None, headers, 0, 0))
    if size > message_bytes_max:
        raise InvalidInput(f"a message of {size} bytes is larger than client.message_bytes_max ({message_bytes_max})")
    return message_bytes_max - size


def _no_bytes(what: str, found: object, remedy: str) -> InvalidInput:
    return InvalidInput(f"a message's {what} is bytes or None, not {type(found).__name__}: {remedy}")
