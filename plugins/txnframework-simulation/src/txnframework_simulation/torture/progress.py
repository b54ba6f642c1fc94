"""What is happening: a line that is written anew on a terminal, and now and then a line elsewhere."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from txnframework_simulation.torture.misfortunes import Misfortunes

_LOOK_SECONDS = 1.0
_PLAIN_SECONDS = 10.0
_ENDS = {b'"kind":"ok"': "done", b'"kind":"fail"': "refused", b'"kind":"unknown"': "unknown"}


class Progress:
    """Counts what the processes append to their histories."""

    def __init__(self, console: Console, parts: Path, seconds: float, misfortunes: Misfortunes) -> None:
        self._console = console
        self._parts = parts
        self._seconds = seconds
        self._misfortunes = misfortunes
        self._read: dict[Path, int] = {}
        self._counts = dict.fromkeys(_ENDS.values(), 0)
        self._said_at = 0.0

    async def until(self, end: float) -> None:
        """Tell how it goes until a time of the monotonic clock."""
        live = self._console.status("") if self._console.is_terminal else nullcontext()
        with live as status:
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(_LOOK_SECONDS, left))
                self._count()
                line = self._line(end)
                if status is not None:
                    status.update(line)
                elif time.monotonic() - self._said_at > _PLAIN_SECONDS:
                    self._said_at = time.monotonic()
                    self._console.print(line, highlight=False, soft_wrap=True)  # one line, however long, for a log

    def _line(self, end: float) -> str:
        gone = self._seconds - max(0.0, end - time.monotonic())
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        struck = ", ".join(f"{count} {name}" for name, count in sorted(self._misfortunes.counts.items()))
        return f"{gone:.0f} of {self._seconds:.0f} s: {counts}; {struck or 'nothing happened to anybody yet'}"

    def _count(self) -> None:
        for file in self._parts.glob("*.jsonl"):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._read[file] = self._read.get(file, 0) + len(line)
                    for mark, name in _ENDS.items():
                        self._counts[name] += mark in line
