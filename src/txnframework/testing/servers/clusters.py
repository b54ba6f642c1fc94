"""
Launchers of servers that run alone or as members of a cluster; each kind of server is a subclass.

A server keeps its directory and its ports, so that a restarted one continues with its data. No server outlives the
process that started it. Every wait uses real time, and blocks: in an event loop use ``asyncio.to_thread``.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from txnframework.testing.servers.processes import Guard

T = TypeVar("T")

LOCALHOST = "127.0.0.1"

_START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.02
_LAST_LINES = 20


class ServerProcess(ABC):
    """One server, alone or in a cluster. Its data and its log are in ``directory``."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.is_paused = False
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """
        Write the configuration into the directory, and return the command that runs the server.

        :raises RuntimeError: its program is missing; the text says what to install.
        """

    @property
    def host(self) -> str:
        """The address of the server for clients."""
        return f"{LOCALHOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int | None:
        """The id of the server's process, if it runs."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.directory / "server.log"

    def start(self) -> None:
        """Start the server on its existing data, and return immediately."""
        assert not self.is_running, f"the server in {self.directory} is running"
        self.kill()  # Remove the remains of a process that has ended.
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self.command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server, with arguments of our own
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._guard = Guard(self._process.pid)
        self.is_paused = False

    def kill(self) -> None:
        """End the server immediately, like ``kill -9``; confirmed writes are on disk. Do nothing if it has ended."""
        if self._process is not None and self._guard is not None:
            self._process.kill()
            self._process.wait()
            self._guard.dismiss()
        self._process = self._guard = None
        self.is_paused = False

    def pause(self) -> None:
        """
        Stop the process until ``resume``.

        The process has stopped when this returns, and its connections stay open.
        """
        if self.is_paused:
            return
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        # On a busy machine, the signal may stop the threads after one of them has sent another reply.
        os.waitpid(self._process.pid, os.WUNTRACED)
        self.is_paused = True

    def resume(self) -> None:
        """Let the process continue."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def last_words(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LAST_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"the server in {self.directory} is not running"
        self._process.send_signal(number)


S = TypeVar("S", bound=ServerProcess)


class ServerCluster(ABC, Generic[S]):
    """One server, or the members of a cluster; a context manager that starts them, and kills them at the end."""

    kind: ClassVar[str]
    """What the servers are called in errors."""

    def __init__(self, servers: tuple[S, ...]) -> None:
        self.servers = servers

    @abstractmethod
    def wait_until_serving(self) -> None:
        """Return when every server that runs and is not paused serves clients; these must be a majority."""

    @property
    def hosts(self) -> str:
        """The addresses of the servers for clients."""
        return ",".join(server.host for server in self.servers)

    def start(self) -> None:
        """Start every server that is not running, and return when all serve."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        self.wait_until_serving()

    def stop(self) -> None:
        """End every server; confirmed writes are on disk in any case."""
        for server in self.servers:
            server.kill()

    def live(self) -> list[S]:
        """Return the servers that run and are not paused."""
        return [server for server in self.servers if server.is_running and not server.is_paused]

    def wait(self, look: Callable[[], T | None]) -> T:
        """
        Return the result of ``look`` once there is one; ``look`` is repeated, because a server may not answer in time.

        :raises RuntimeError: a server ended by itself, or there is no result in time; the text has the end of its log.
        """
        until = time.monotonic() + _START_SECONDS_MAX
        expected = self.live()
        while (found := look()) is None:
            ended = [server for server in expected if not server.is_running]
            if ended or time.monotonic() > until:
                late = ended or expected
                what = "ended by itself" if ended else f"does not serve after {_START_SECONDS_MAX:.0f} seconds"
                logs = "".join(f"\n{server.log}:\n{server.last_words()}" for server in late)
                raise RuntimeError(f"{self.kind} {what}; the end of its log:{logs}")
            time.sleep(_LOOK_SECONDS)
        return found

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


C = TypeVar("C", bound=ServerCluster[Any])


def started_until_exit(name: str, make: Callable[[Path], C]) -> C:
    """Start servers in a temporary directory; they end with this process, and the directory is removed."""
    directory = tempfile.TemporaryDirectory(prefix=f"txnframework-{name}-")
    cluster = make(Path(directory.name))
    atexit.register(directory.cleanup)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster
