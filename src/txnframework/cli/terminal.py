"""The console for tables and progress; it escapes control characters of the data that it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from txnframework.cli._safe_stream import SafeStream, escape_controls

PLAIN_WIDTH = 160
"""The width of output into a file or pipe: wide enough that no line of a table is folded."""


class SafeConsole(Console):
    """A console that writes rich's own control sequences, and escapes all others."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Return the segments of a renderable, escaped except for rich's own sequences."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_controls(segment.text))


def console(*, stderr: bool = False, plain_width: int = PLAIN_WIDTH) -> Console:
    """Return the console of standard output or standard error; ``plain_width``: of output into files and pipes."""
    stream = sys.stderr if stderr else sys.stdout
    raw = stream.wrapped if isinstance(stream, SafeStream) else stream
    made = SafeConsole(file=raw)
    return made if made.is_terminal or stderr else SafeConsole(file=raw, width=plain_width)
