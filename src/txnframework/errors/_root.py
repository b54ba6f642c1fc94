"""The root of all errors, and values in their texts."""

from __future__ import annotations

from typing import ClassVar


class TxnFrameworkError(Exception):
    """
    The root of all exceptions that this framework raises deliberately.

    :known: Only what the text says.
    :retry: decide
    :advice: Read the text; a more specific class is raised wherever a program can branch on it.
    """

    code: ClassVar[str] = "TXN-000"
    """
    The stable code of the class. It never changes and is never used again; ``txnframework explain CODE`` prints its
    entry. A subclass without a code of its own has its parent's.
    """


_EXCERPT_CHARACTERS = 100


def excerpt(given: object) -> str:
    """Return a value in a form that a sentence can quote: its beginning, with control characters escaped."""
    if isinstance(given, int) and given.bit_length() > 4 * _EXCERPT_CHARACTERS:
        return f"a number of {given.bit_length()} bits"  # Python refuses to write longer ones in digits
    if isinstance(given, str | bytes) and len(given) > _EXCERPT_CHARACTERS:
        return f"{ascii_safe(repr(given[:_EXCERPT_CHARACTERS]))}..."
    if isinstance(given, str | bytes | int | float | None):
        return ascii_safe(repr(given))
    return f"a {type(given).__name__}"


def named_topic(name: str) -> str:
    """Return a topic as a sentence names it: a full name, such as ``topic://...``, says that it is one."""
    return name if "://" in name else f"topic {name}"


def ascii_safe(text: str) -> str:
    """Return text that every output accepts: lone surrogates, which have no UTF-8 form, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
