"""Guards that end servers together with the tests that started them, however the tests end."""

from __future__ import annotations

import subprocess
from pathlib import Path

_WAIT_AND_KILL = 'read -r _; kill -9 "$1" 2>/dev/null; [ -z "$2" ] || rm -rf "$2" || { sleep 1; rm -rf "$2"; }'


class Guard:
    """
    Kills a process when this process ends, also by ``kill -9``: a shell waits for the end of a pipe.

    ``directory`` is then removed, with all files that the process left there.
    """

    def __init__(self, pid: int, directory: Path | None = None) -> None:
        command = ["/bin/sh", "-c", _WAIT_AND_KILL, "guard", str(pid), str(directory or "")]
        self._shell = subprocess.Popen(  # noqa: S603 - a line of our own, and a number
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def dismiss(self) -> None:
        """End the guard because the process has ended: the operating system may soon reuse its id."""
        self._shell.kill()
        self._shell.communicate()
