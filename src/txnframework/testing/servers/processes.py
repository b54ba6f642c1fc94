"""Server processes: free ports, and a guard that ends them with the process that started them."""

from __future__ import annotations

import random
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

# The range is below that of outgoing connections: one of those must not take the port of a server that is down for a
# moment.
_LOWEST, _HIGHEST = 15_000, 32_000
_ATTEMPTS_MAX = 1_000


def free_ports(count: int) -> tuple[int, ...]:
    """
    Return ``count`` unused ports of the loopback interface.

    :raises OSError: there are not enough free ports.
    """
    found: list[int] = []
    with ExitStack() as taken:
        for _ in range(_ATTEMPTS_MAX):
            if len(found) == count:
                return tuple(found)
            # Random on purpose, not seeded: several test runs share one machine.
            port = random.SystemRandom().randint(_LOWEST, _HIGHEST)
            one = taken.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST}")


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
