r"""
The way of everything that a command prints, those of plugins too: data can not steer the terminal.

A message, a name or an error may hold escape sequences that rename the window, clear the screen, write to the clipboard
or turn the order of a line. What goes to standard output and standard error therefore passes one of two places, which
write control characters as ``\x1b``: ``SafeStream`` for text, and ``SafeConsole`` for tables and progress, whose own
sequences rich marks as such.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 160
"""Into a file or pipe: wide enough that nobody's grep meets a folded line."""

_KEPT = "\n\t"
_C0_AND_C1 = (*range(0x20), *range(0x7F, 0xA0))
_TURNING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES = range(0xD800, 0xE000)
_WRITTEN = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_C0_AND_C1, *_TURNING, *_SURROGATES)
    if chr(code) not in _KEPT
}


def neutralised(text: str) -> str:
    """Return text with every control character written out, but for line ends and tabulators."""
    return text if text.isascii() and text.isprintable() else text.translate(_WRITTEN)


class SafeStream:
    """
    A text stream through which no control character goes; it has no ``buffer``, which would be a way around it.

    It says that it is no terminal, so that libraries write no sequences of their own, which would be written out too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, neutralised."""
        self._stream.write(neutralised(text))
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
            raise AttributeError("what is printed is text: bytes would not be neutralised")
        return getattr(self._stream, name)


def console(*, stderr: bool = False, plain_width: int = PLAIN_WIDTH) -> Console:
    """Return the console of standard output or standard error; the first has a fixed width into a file or pipe."""
    from txnframework.cli._safe_console import SafeConsole  # rich takes long to import, and few commands need it

    stream = sys.stderr if stderr else sys.stdout
    raw = stream._stream if isinstance(stream, SafeStream) else stream
    made = SafeConsole(file=raw)
    return made if made.is_terminal or stderr else SafeConsole(file=raw, width=plain_width)


@contextmanager
def safe_output() -> Iterator[None]:
    """Let everything that is printed meanwhile, by whomever, pass a ``SafeStream``."""
    before = sys.stdout, sys.stderr
    make_output_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_output_safe() -> None:
    """Let everything that is printed from now on, an uncaught exception's traceback too, pass a ``SafeStream``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream))
