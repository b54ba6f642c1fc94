"""
Serializers: how a producer encodes the contents of messages, and how a consumer or reader decodes them.

::

    class Order(msgspec.Struct):
        customer: str
        cents: int

    ORDERS = MsgspecJson(Order, schema="order", version=1)

    producer = await client.producer("orders", serializer=ORDERS)
    await producer.send(Order("ada", 250))
    consumer = await client.consumer("orders", "billing", serializer=ORDERS)
    order = (await consumer.receive()).content    # an Order

A schema id, such as ``order:1``, is stored in the header ``txnframework-schema`` of each message. A serializer decodes
messages with its own schema id only; one without a schema decodes messages without a schema id. ``first | second``
decodes the messages of both, each by its schema id, and encodes each content by the serializer for its type.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, get_origin

import msgspec

from txnframework.errors import InvalidInput, MissingExtra, excerpt

T = TypeVar("T")
U = TypeVar("U")

SCHEMA_HEADER: Final = "txnframework-schema"
"""The header that holds the schema id of a message; producers with a serializer set it."""

VERSION_MAX: Final = 2**31 - 1
_SCHEMA_NAME: Final = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_PATH: Final = re.compile(r" - at `(\$[^`]*)`$")


class Serializer(ABC, Generic[T]):
    """
    Encodes and decodes contents of type ``T``; subclass it for a format of your own.

    :param schema: the name of the schema: letters, digits and ``. _ / -``, at most 200. Default: messages have no
        schema id.
    :param version: the version of the schema, which is part of the schema id.
    :raises InvalidInput: the name or the version is not valid.
    """

    def __init__(self, *, schema: str | None = None, version: int = 1) -> None:
        self.schema_id: Final[str | None] = None if schema is None else schema_id_of(schema, version)
        """The schema id, ``name:version``, or None."""

    @abstractmethod
    def encode(self, content: T) -> bytes:
        """
        Return the stored form of a content.

        :raises InvalidInput: the content cannot be encoded.
        """

    @abstractmethod
    def decode(self, value: bytes) -> T:
        """Return the content of a stored value, or raise any exception if the value is not valid."""

    def encodes(self, content: object) -> bool:
        """Return whether ``encode`` accepts the content; by default it accepts all contents."""
        del content
        return True

    def encodes_exactly(self, content: object) -> bool:
        """Return whether ``content`` has the very type of this serializer, and not a type that is derived from it."""
        del content
        return False

    def explain(self, error: Exception) -> str:
        """Return in one clause why ``decode`` raised ``error``. It must not contain any part of the value."""
        return f"the serializer raised {type(error).__name__}"

    def alternatives(self) -> tuple[Serializer[Any], ...]:
        """Return the serializers of which ``|`` made this one; by default this serializer alone."""
        return (self,)

    def for_schema(self, schema_id: str | None) -> Serializer[T] | None:
        """Return the serializer that decodes messages with this schema id; None if there is none."""
        return next((one for one in self.alternatives() if one.schema_id == schema_id), None)

    def for_content(self, content: object) -> Serializer[T]:
        """
        Return the serializer that encodes a content.

        :raises InvalidInput: there is none.
        """
        able = [one for one in self.alternatives() if one.encodes(content)]
        if not able:
            raise InvalidInput(f"the serializer {self!r} does not encode {excerpt_of_type(content)}")
        return next((one for one in able if one.encodes_exactly(content)), able[0])

    def __or__(self, other: Serializer[U]) -> Serializer[T | U]:
        """Return a serializer that decodes what either of the two decodes, and encodes what either encodes."""
        return _Alternatives((*self.alternatives(), *other.alternatives()))


class _Alternatives(Serializer[T]):
    """Several serializers with different schema ids."""

    def __init__(self, parts: tuple[Serializer[Any], ...]) -> None:
        super().__init__()
        self._parts = parts
        ids = [one.schema_id for one in parts]
        twice = next((one for one in ids if ids.count(one) > 1), "")
        if twice != "":
            named = "no schema" if twice is None else f"the schema id {twice}"
            raise InvalidInput(f"two of the serializers have {named}: a message could be decoded by either of them")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._parts))

    def alternatives(self) -> tuple[Serializer[Any], ...]:
        """Return the parts."""
        return self._parts

    def encode(self, content: T) -> bytes:
        """Encode by the serializer for the type of the content."""
        return self.for_content(content).encode(content)

    def decode(self, value: bytes) -> T:
        """Decode a message without a schema id."""
        chosen = self.for_schema(None)
        if chosen is None:
            raise ValueError("no serializer decodes messages without a schema id")
        return chosen.decode(value)


_CLASS = type
"""The builtin, where a parameter has its name."""


class _OfType(Serializer[T]):
    """A serializer of one type, such as a class or ``list[Order]``."""

    def __init__(self, type: type[T], *, schema: str | None = None, version: int = 1) -> None:
        super().__init__(schema=schema, version=version)
        self.type: Final = type
        origin = get_origin(type) or type
        self._class = origin if isinstance(origin, _CLASS) else None

    def __repr__(self) -> str:
        schema = "" if self.schema_id is None else f", {self.schema_id}"
        return f"{type(self).__name__}({getattr(self.type, '__name__', self.type)}{schema})"

    def encodes(self, content: object) -> bool:
        """Return whether the content is an instance; for types that have no instances, such as a union, True."""
        return self._class is None or isinstance(content, self._class)

    def encodes_exactly(self, content: object) -> bool:
        """Return whether the content is a direct instance."""
        return type(content) is self._class


class _Msgspec(_OfType[T]):
    """The two formats of msgspec."""

    _encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], T]

    def encode(self, content: T) -> bytes:
        """Return the encoded content."""
        return _encoded(self._encode, content)

    def decode(self, value: bytes) -> T:
        """Return the content, checked against the type."""
        return self._decode(value)

    def explain(self, error: Exception) -> str:
        """Return the place in the value that does not fit, without the value."""
        return _explain_msgspec(error, f"it does not fit {getattr(self.type, '__name__', self.type)}")


class MsgspecJson(_Msgspec[T]):
    """
    JSON of a ``msgspec.Struct``, or of any other type that msgspec supports: dataclasses, TypedDict, ``list[Order]``.

    ``type`` is the type of the contents; the other parameters are those of ``Serializer``.
    """

    def __init__(self, type: type[T], *, schema: str | None = None, version: int = 1) -> None:
        super().__init__(type, schema=schema, version=version)
        self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(type).decode


class MsgspecMessagePack(_Msgspec[T]):
    """MessagePack of the types that ``MsgspecJson`` supports, with the same parameters."""

    def __init__(self, type: type[T], *, schema: str | None = None, version: int = 1) -> None:
        super().__init__(type, schema=schema, version=version)
        self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type).decode


class PydanticJson(_OfType[T]):
    """
    JSON of a pydantic model, or of any other type that pydantic's ``TypeAdapter`` supports.

    ``type`` is the type of the contents; the other parameters are those of ``Serializer``.

    :raises MissingExtra: pydantic is not installed; the extra ``pydantic`` installs it.
    """

    def __init__(self, type: type[T], *, schema: str | None = None, version: int = 1) -> None:
        super().__init__(type, schema=schema, version=version)
        try:
            from pydantic import TypeAdapter
        except ImportError as error:
            raise MissingExtra("txnframework.serializers.PydanticJson", "pydantic", "pydantic") from error
        self._adapter: Any = TypeAdapter(type)

    def encode(self, content: T) -> bytes:
        """Return the content as JSON, with the names of its aliases."""
        return _encoded(lambda one: self._adapter.dump_json(one, by_alias=True), content)

    def decode(self, value: bytes) -> T:
        """Return the content, validated by pydantic."""
        content: T = self._adapter.validate_json(value)
        return content

    def explain(self, error: Exception) -> str:
        """Return pydantic's name of the first error and the field, without the value."""
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            return super().explain(error)
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        # The place of an error may contain keys of the value. Only names of fields are known not to be data.
        fields = getattr(self.type, "model_fields", {})
        names = {*fields, *(one.alias for one in fields.values())}
        field = first["loc"][0] if first["loc"] and first["loc"][0] in names else None
        where = "" if field is None else f" at field {field!r}"
        return f"it does not fit {getattr(self.type, '__name__', self.type)}: {first['type']}{where}"


class PlainJson(Serializer[Any]):
    """JSON without a type: objects are decoded as dictionaries, arrays as lists. Parameters as for ``Serializer``."""

    def __repr__(self) -> str:
        return "PlainJson()" if self.schema_id is None else f"PlainJson({self.schema_id})"

    def encode(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return _encoded(msgspec.json.encode, content)

    def decode(self, value: bytes) -> Any:
        """Return the content."""
        return msgspec.json.decode(value)

    def explain(self, error: Exception) -> str:
        """Return why the value is not JSON, without the value."""
        return _explain_msgspec(error, "it is not JSON")


class PlainText(Serializer[str]):
    """Text, stored as UTF-8. Parameters as for ``Serializer``."""

    def __repr__(self) -> str:
        return "PlainText()" if self.schema_id is None else f"PlainText({self.schema_id})"

    def encode(self, content: str) -> bytes:
        """Return the text in UTF-8."""
        return _encoded(str.encode, content)

    def decode(self, value: bytes) -> str:
        """Return the text."""
        return value.decode()

    def encodes(self, content: object) -> bool:
        """Return whether the content is text."""
        return isinstance(content, str)

    def explain(self, error: Exception) -> str:
        """Return that the value is not UTF-8."""
        return "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else super().explain(error)


def schema_id_of(name: str, version: int) -> str:
    """
    Return the schema id ``name:version``.

    :raises InvalidInput: the name or the version is not valid.
    """
    if not isinstance(name, str) or not _SCHEMA_NAME.fullmatch(name):
        raise InvalidInput(f"the name of a schema has 1 to 200 letters, digits or . _ / -, unlike {excerpt(name)}")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= VERSION_MAX:
        raise InvalidInput(f"the version of a schema is between 0 and {VERSION_MAX}, not {excerpt(version)}")
    return f"{name}:{version}"


def excerpt_of_type(content: object) -> str:
    """Return the type of a content for a sentence; the content itself may be confidential."""
    return f"a {type(content).__name__}"


def _encoded(encode: Callable[[Any], bytes], content: object) -> bytes:
    """Return the encoded content; raise InvalidInput if the format has no form for it."""
    try:
        return encode(content)
    except Exception as error:
        raise InvalidInput(f"{excerpt_of_type(content)} cannot be encoded: {type(error).__name__}") from error


def _explain_msgspec(error: Exception, otherwise: str) -> str:
    """Return the path of the part that has a wrong type; the rest of msgspec's text may quote the value."""
    if isinstance(error, msgspec.ValidationError):
        found = _PATH.search(str(error))
        return otherwise if found is None else f"{otherwise} at {found[1]}"
    return f"{otherwise}: it is malformed or truncated"


__all__ = [
    "SCHEMA_HEADER",
    "MsgspecJson",
    "MsgspecMessagePack",
    "PlainJson",
    "PlainText",
    "PydanticJson",
    "Serializer",
    "schema_id_of",
]
