r"""
Escaping of control characters in everything that a command prints, so that data cannot control the terminal.

A message, a name or an error may hold escape sequences that rename the window, clear the screen, write to the clipboard
or reverse the direction of a line. Two places therefore write control characters as ``\x1b``: ``SafeStream`` for text,
and ``terminal.SafeConsole`` for tables and progress. They cover the commands of plugins, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_ALLOWED = "\n\t"
_C0_AND_C1 = (*range(0x20), *range(0x7F, 0xA0))
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES = range(0xD800, 0xE000)
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_C0_AND_C1, *_BIDIRECTIONAL, *_SURROGATES)
    if chr(code) not in _ALLOWED
}


def escape_controls(text: str) -> str:
    """Return text with every control character escaped, except line ends and tabulators."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


class SafeStream:
    """
    A text stream that escapes control characters; it has no ``buffer``, which would bypass the escaping.

    It reports that it is no terminal. Libraries then write no escape sequences, which would be escaped too.
    """

    def __init__(self, stream: TextIO) -> None:
        self.wrapped = stream

    def write(self, text: str | bytes) -> int:
        """Write text with its control characters escaped; click writes the completions of a shell as bytes."""
        decoded = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
        self.wrapped.write(escape_controls(decoded))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError("bytes cannot be printed: their control characters would not be escaped")
        return getattr(self.wrapped, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Route standard output and standard error through a ``SafeStream`` during the block."""
    before = sys.stdout, sys.stderr
    make_output_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_output_safe() -> None:
    """Route all later output, also the traceback of an uncaught exception, through a ``SafeStream``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream))
