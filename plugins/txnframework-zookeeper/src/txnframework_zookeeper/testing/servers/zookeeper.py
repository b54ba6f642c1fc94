"""
A real ZooKeeper 3.9 on this machine, from PySpark's jars: one server, or an ensemble to kill and pause members of.

    with ZooKeeper(tmp_path, servers=3) as zookeeper:
        url = f"zookeeper://{zookeeper.hosts}/test"
        zookeeper.leader().kill()

Tests that need only one server use ``shared_hosts()``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from txnframework.testing.servers.processes import Guard, free_ports

_JARS = (
    "zookeeper", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core", "snappy-java",
    "commons-cli", "commons-io", "netty-",
)  # fmt: skip
"""The jars that a server needs, out of Spark's three hundred; with all of them the start takes twice as long."""


def java_command() -> list[str]:
    """Return the command that runs a class of ZooKeeper; raise RuntimeError with what to install if it is missing."""
    return [java_tool("java"), "-cp", os.pathsep.join(map(str, _class_path()))]


def java_tool(name: str) -> str:
    """Return the path of a Java program; raise RuntimeError with what to install if it is missing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else shutil.which(name)
    if found is None:
        raise RuntimeError("a ZooKeeper server needs Java: install a JDK (17 or later), or set JAVA_HOME to one")
    return found


def _class_path() -> list[Path]:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("a ZooKeeper server needs PySpark's jars: pip install pyspark")
    jars = Path(spec.origin).parent / "jars"
    found = [jar for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS)]
    if not any(jar.name.startswith("zookeeper") for jar in found):
        raise RuntimeError(f"a ZooKeeper server needs PySpark's jars, and {jars} has no jar of ZooKeeper")
    return found


T = TypeVar("T")

HOSTS_VARIABLE = "TXN_TEST_ZOOKEEPER_HOSTS"
"""The environment variable that names servers to test with, ``host:port,host:port``, instead of starting one."""

TICK_MS = 200
"""ZooKeeper's unit of time: the shortest session timeout is two ticks, and sessions expire at a tick."""

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LOCALHOST = "127.0.0.1"
_START_SECONDS_MAX = 60.0
_ANSWER_SECONDS_MAX = 1.0
_LOOK_SECONDS = 0.02
_LAST_LINES = 20
_JAVA_OPTIONS = (
    # Little memory and a fast start: several servers may run beside the tests.
    "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dlog4j2.level=warn",
    "-Dzookeeper.jmx.log4j.disable=true", "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip
_SETTINGS = {
    "tickTime": str(TICK_MS),
    "initLimit": "50",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    # Confirmed writes are on disk. This is the default, set here so that nothing changes it.
    "forceSync": "yes",
}


@dataclass(frozen=True)
class Setup:
    """
    Additional settings of a server: lines of its configuration, and options of its Java.

    With ``is_secure`` it listens at one more port, for TLS; see ``security``.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    is_secure: bool = False

    def and_also(self, other: Setup) -> Setup:
        """Return both setups; where both set one line, the line of ``other``."""
        return Setup(
            {**self.settings, **other.settings},
            self.java_options + other.java_options,
            self.is_secure or other.is_secure,
        )


class ZooKeeperServer:
    """
    One server, single or in an ensemble, on its own ports.

    Its data stays in its directory, so that a restarted server continues with it.
    """

    def __init__(self, directory: Path, number: int, ports: tuple[int, int], setup: Setup) -> None:
        self.directory = directory
        self.port, self.secure_port = ports
        self.is_paused = False
        self._number = number
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def host(self) -> str:
        """The address of the server for clients."""
        return f"{_LOCALHOST}:{self.port}"

    @property
    def secure_host(self) -> str:
        """The address of the server for TLS; a certificate names the host ``localhost``."""
        return f"localhost:{self.secure_port}"

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server on its existing data, and return immediately."""
        assert not self.is_running, f"the server in {self.directory} is running"
        self.kill()  # Remove the remains of a process that has ended.
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = _SETTINGS | {"dataDir": str(self.directory), "clientPort": str(self.port)}
        settings |= {"clientPortAddress": _LOCALHOST, **self._setup.settings}
        if self._setup.is_secure:
            settings |= {"secureClientPort": str(self.secure_port), "secureClientPortAddress": _LOCALHOST}
        (self.directory / "myid").write_text(f"{self._number}\n")
        configuration = self.directory / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [*java_command(), *_JAVA_OPTIONS, *self._setup.java_options, _MAIN, str(configuration)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - Java, with arguments of our own
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

    def ask(self, word: str) -> str:
        """Return the reply to a four-letter command, such as ``srvr`` or ``mntr``; empty without a reply."""
        return _ask(_LOCALHOST, self.port, word)

    def mode(self) -> str:
        """Return ``leader``, ``follower`` or ``standalone``; empty while the server does not serve."""
        lines = (line.partition(": ") for line in self.ask("srvr").splitlines())
        return next((value for name, _, value in lines if name == "Mode"), "")

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


class ZooKeeper:
    """
    One server or an ensemble, in ``directory``; a context manager that starts it, and kills it at the end.

    Every wait uses real time, and blocks: in an event loop use ``asyncio.to_thread``.
    """

    def __init__(self, directory: Path, servers: int = 1, setup: Setup | None = None) -> None:
        setup = setup or Setup()
        ports = free_ports(4 * servers)
        plain, secure, quorum, election = (ports[kind::4] for kind in range(4))
        members = {
            f"server.{number}": f"{_LOCALHOST}:{to_leader}:{to_elect}"
            for number, to_leader, to_elect in zip(count(1), quorum, election, strict=False)
            if servers > 1
        }
        self.servers = tuple(
            ZooKeeperServer(directory / f"server-{number}", number, both, setup=Setup(members).and_also(setup))
            for number, both in zip(count(1), zip(plain, secure, strict=True), strict=False)
        )

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
        self._wait(self._modes_if_all_serve)

    def leader(self) -> ZooKeeperServer:
        """Return the leader, or the only server; wait until there is one."""
        return self._wait(lambda: next((one for one in self._live() if one.mode() in ("leader", "standalone")), None))

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """Return the followers of the leader; wait until every server that runs and is not paused serves."""
        return tuple(server for server, mode in self._wait(self._modes_if_all_serve).items() if mode == "follower")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _live(self) -> list[ZooKeeperServer]:
        return [server for server in self.servers if server.is_running and not server.is_paused]

    def _modes_if_all_serve(self) -> dict[ZooKeeperServer, str] | None:
        modes = {server: server.mode() for server in self._live()}
        return modes if all(modes.values()) else None

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
                raise RuntimeError(f"ZooKeeper {what}; the end of its log:{logs}")
            time.sleep(_LOOK_SECONDS)
        return found


def shared_hosts() -> str:
    """
    Return the servers to test with: those that ``TXN_TEST_ZOOKEEPER_HOSTS`` names, or one of this process's own.

    That server is started by the first call, and ends with the process. Every test uses a new chroot.
    """
    return os.environ.get(HOSTS_VARIABLE) or _own_server().hosts


def server_version(hosts: str) -> str:
    """Return the ZooKeeper version of the first of these servers; empty if it does not report one."""
    host, _, port = hosts.split(",")[0].rpartition(":")
    lines = (line.partition(": ") for line in _ask(host, int(port), "srvr").splitlines())
    return next((value.partition("-")[0] for name, _, value in lines if name == "Zookeeper version"), "")


def _ask(host: str, port: int, word: str) -> str:
    found = b""
    try:
        with socket.create_connection((host, port), _ANSWER_SECONDS_MAX) as connection:
            connection.sendall(word.encode())
            while part := connection.recv(65536):
                found += part
    except OSError:
        return ""
    return found.decode()


@cache
def _own_server() -> ZooKeeper:
    directory = tempfile.TemporaryDirectory(prefix="txnframework-zookeeper-")
    zookeeper = ZooKeeper(Path(directory.name))
    atexit.register(directory.cleanup)
    atexit.register(zookeeper.stop)
    zookeeper.start()
    return zookeeper
