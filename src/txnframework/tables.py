"""
From tables to typed values, with errors that name the place in the file.

msgspec checks single values, and this module visits the tables. The reason: msgspec's own paths do not name the keys of
a mapping (``$.namespaces[...]``), and its errors do not suggest the nearest key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from txnframework.errors import ConfigurationError, excerpt
from txnframework.urls import shown

S = TypeVar("S", bound=msgspec.Struct)

NUMBER_MAX = 2**62
"""Current times are added to configured durations, and the sum fits the 63 bits that every store has."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "an array",
    "null": "nothing",
}


@dataclass(frozen=True, slots=True)
class KeyPath:
    """The path of a value in a configuration file, and the file if there is one."""

    path: str = ""
    file: str | None = None

    def __truediv__(self, key: str) -> KeyPath:
        """Return the path of ``key`` in the table at this path."""
        written = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
        return KeyPath(f"{self.path}.{written}" if self.path else written, self.file)

    def at(self, index: int) -> KeyPath:
        """Return the path of an item, counted from 0, in the array at this path."""
        return KeyPath(f"{self.path}[{index}]", self.file)

    def error(self, reason: str) -> ConfigurationError:
        """Return the error with ``reason`` for this path."""
        return ConfigurationError(self.path, reason, self.file)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to ``name``, if one is similar."""
    found = get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error's sentence: the name that was probably meant, and the allowed names."""
    names = sorted(known)
    meant = nearest(name, names)
    guess = f"; did you mean {meant!r}?" if meant else ""
    return f"{guess} (allowed: {', '.join(names) or 'nothing'})"


def decode(table: object, kind: type[S], place: KeyPath) -> S:
    """
    Return ``table`` as a ``kind``, or raise ConfigurationError for the first thing in it that does not fit.

    Unknown keys are refused, even if ``kind`` itself allows unknown fields, because a misspelt option must not be
    ignored silently.
    """
    if not isinstance(table, Mapping):
        raise place.error(f"expected a table, found {shown(_last(place), table)}")
    fields = _fields(kind)
    for key in table:
        if key not in fields:
            raise place.error(f"unknown key {str(key)!r}{suggestion(str(key), fields)}")
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in table:
            values[field.name] = _decode_value(table[key], field.type, place / key)
        elif field.required:
            raise (place / key).error("missing, and has no default")
    try:
        return kind(**values)
    except (TypeError, ValueError) as exc:  # a rule between fields, from the type's __post_init__
        raise place.error(str(exc)) from exc


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, FieldInfo]:
    """
    Return the fields of a type by their names in a file.

    The result is cached, because options are decoded repeatedly.
    """
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _decode_value(value: object, annotation: Any, place: KeyPath) -> object:
    if isinstance(value, int) and not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise place.error(f"found {excerpt(value)}, expected a number between -2**62 and 2**62")
    plain = _plain(annotation)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return decode(value, plain, place)
    if get_origin(plain) is dict and isinstance(value, Mapping):
        item = get_args(plain)[1]
        return {str(key): _decode_value(entry, item, place / str(key)) for key, entry in value.items()}
    if get_origin(plain) in (list, tuple) and isinstance(value, list):
        item = get_args(plain)[0]
        if isinstance(item, type) and issubclass(item, msgspec.Struct):
            # A type of an array of tables is a list, or a tuple of any length.
            return get_origin(plain)(decode(entry, item, place.at(index)) for index, entry in enumerate(value))
    if get_origin(plain) is Literal and value not in get_args(plain):
        allowed = [str(choice) for choice in get_args(plain)]
        raise place.error(f"found {shown(_last(place), value)}{suggestion(str(value), allowed)}")
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError as exc:
        raise _translated(exc, value, place) from exc


def _plain(annotation: Any) -> Any:
    """Return the type behind ``Annotated`` and behind ``| None``: a file has no way to write None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [one for one in get_args(annotation) if one is not type(None)]
        return _plain(others[0]) if len(others) == 1 else annotation
    return annotation


def _translated(exc: msgspec.ValidationError, value: object, place: KeyPath) -> ConfigurationError:
    """Return the error of msgspec in the terms of a configuration file."""
    text, _, where = str(exc).partition(" - at `$")
    inner = KeyPath(place.path + where.rstrip("`"), place.file)
    if not text.startswith("Expected `"):
        return inner.error(f"{text[:1].lower()}{text[1:]}")
    expected = re.match(r"Expected `([^`]*)`(.*?)(, got `.*`)?$", text)
    if expected is None:
        return inner.error(text)
    kinds = [_TYPE_NAMES.get(name, name) for name in expected[1].split(" | ") if name != "null"]
    found = shown(_last(place), value) if not where else "something else"
    return inner.error(f"expected {' or '.join(kinds)}{expected[2]}, found {found}")


def _last(place: KeyPath) -> str:
    return place.path.rpartition(".")[2]
