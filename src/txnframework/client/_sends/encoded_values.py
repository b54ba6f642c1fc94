"""Encoding of the contents that a producer with a serializer sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txnframework.errors import InvalidInput
from txnframework.serializers import SCHEMA_HEADER

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

HeaderPairs = tuple[tuple[str, bytes], ...]


def encode_all(
    serializer: Serializer[Any], contents: Sequence[object], headers: HeaderPairs
) -> tuple[tuple[bytes | None, ...], tuple[HeaderPairs, ...]]:
    """
    Return the values to store, and the headers of each message: ``headers`` and its schema id.

    A null, which has no content, gets no schema id.

    :raises InvalidInput: a content cannot be encoded, or ``headers`` contain the header of schema ids.
    """
    if any(name == SCHEMA_HEADER for name, _ in headers):
        raise InvalidInput(f"the header {SCHEMA_HEADER} is set by the serializer of the producer; leave it out")
    values: list[bytes | None] = []
    tagged: list[HeaderPairs] = []
    for content in contents:
        if content is None:
            values.append(None)
            tagged.append(headers)
            continue
        chosen = serializer.for_content(content)
        value = chosen.encode(content)
        if not isinstance(value, bytes):
            raise InvalidInput(f"the serializer {chosen!r} has to return bytes, not a {type(value).__name__}")
        values.append(value)
        schema_id = chosen.schema_id
        tagged.append(headers if schema_id is None else (*headers, (SCHEMA_HEADER, schema_id.encode())))
    return tuple(values), tuple(tagged)


def largest_headers(tagged: Sequence[HeaderPairs]) -> HeaderPairs:
    """Return the headers that need the most bytes; none if there are no messages."""
    return max(tagged, key=lambda pairs: sum(len(name) + len(content) for name, content in pairs), default=())


def require_serializer(given: object) -> None:
    """Raise InvalidInput unless ``given`` is a serializer or None."""
    from txnframework.serializers import Serializer

    if given is not None and not isinstance(given, Serializer):
        raise InvalidInput(
            f"a serializer is an object such as MsgspecJson(Order), from txnframework.serializers, not a"
            f" {type(given).__name__}"
        )
