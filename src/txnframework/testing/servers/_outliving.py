"""Servers must not outlive the tests that started them, however those end."""

from __future__ import annotations

import subprocess

_WAIT_AND_KILL = 'read -r _; kill -9 "$1" 2>/dev/null'


class Guard:
    """Ends a process as soon as this one is gone, also after a ``kill -9``: it waits for the end of a pipe."""

    def __init__(self, pid: int) -> None:
        command = ["/bin/sh", "-c", _WAIT_AND_KILL, "guard", str(pid)]
        self._shell = subprocess.Popen(  # noqa: S603 - a line of our own, and a number
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def dismiss(self) -> None:
        """Let the process be: it has ended, and its number may soon be another's."""
        self._shell.kill()
        self._shell.communicate()
