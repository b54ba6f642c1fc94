"""The console of tables and progress."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from txnframework.cli.terminal import neutralised


class SafeConsole(Console):
    """A console that writes its own sequences, and no one else's."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Return the segments of something; those that are not rich's own sequences are neutralised."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=neutralised(segment.text))
