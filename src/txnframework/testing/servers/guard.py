"""Servers must not outlive the tests that started them, however those end."""

from __future__ import annotations

import subprocess
from pathlib import Path

_WAIT_AND_KILL = 'read -r _; kill -9 "$1" 2>/dev/null; [ -z "$2" ] || rm -rf "$2" || { sleep 1; rm -rf "$2"; }'


class Guard:
    """
    Ends a process as soon as this one is gone, also after a ``kill -9``: it waits for the end of a pipe.

    ``directory``: then removed, with all that the process has left in it.
    """

    def __init__(self, pid: int, directory: Path | None = None) -> None:
        command = ["/bin/sh", "-c", _WAIT_AND_KILL, "guard", str(pid), str(directory or "")]
        self._shell = subprocess.Popen(  # noqa: S603 - a line of our own, and a number
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def dismiss(self) -> None:
        """Let the process be: it has ended, and its number may soon be another's."""
        self._shell.kill()
        self._shell.communicate()
