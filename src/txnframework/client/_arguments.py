"""Validation of arguments: values of the right type and size, or InvalidInput before anything is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from txnframework.errors import InvalidInput, excerpt
from txnframework.model.positions import TIME_MS_MAX

INT64_MAX: Final = 2**63 - 1
"""The largest integer that every store can hold."""

MILLISECONDS_MAX: Final = TIME_MS_MAX
"""The longest time that a call can wait."""


def whole_number(given: object, what: str, least: int, most: int = INT64_MAX) -> int:
    """Return an integer within its bounds, or raise InvalidInput; ``what`` names the argument."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidInput(f"{what} is a whole number, not {excerpt(given)}")
    if not least <= given <= most:
        raise InvalidInput(f"{what} is {excerpt(given)}, and has to be between {least} and {most}")
    return given


def time_to_wait_ms(given: object, what: str = "timeout_ms") -> int | None:
    """Return a timeout, None for no limit, or raise InvalidInput; a value below 0 means no wait."""
    return None if given is None else whole_number(given, what, -MILLISECONDS_MAX, MILLISECONDS_MAX)


def several_values(given: object) -> tuple[Any, ...]:
    """Return the values to send together, or raise InvalidInput if the argument is not an iterable of values."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidInput(f"send_many takes several values, not {excerpt(given)}")
    return tuple(given)


def header_pairs(given: object) -> tuple[tuple[str, bytes], ...]:
    """Return headers in their stored form, or raise InvalidInput."""
    try:
        pairs = tuple(given.items())  # type: ignore[attr-defined]
    except AttributeError:
        raise InvalidInput(f"headers are a mapping of names to bytes, not {excerpt(given)}") from None
    for name, content in pairs:
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise InvalidInput("a message's headers have names of text and values of bytes")
        encoded(name, "header name")
    return pairs


def encoded(text: str, what: str) -> bytes:
    """Return text in UTF-8, or raise InvalidInput for a lone surrogate, which UTF-8 cannot encode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        character = ord(text[error.start])
        raise InvalidInput(f"a {what} contains the lone surrogate U+{character:04X}, which no store can hold") from None
