"""
A real ZooKeeper 3.9 on this machine, from PySpark's jars: one server, or an ensemble to kill and pause members of.

    with ZooKeeper(tmp_path, servers=3) as zookeeper:
        url = f"zookeeper://{zookeeper.hosts}/test"
        zookeeper.leader().kill()

Tests that need only one server use ``shared_hosts()``.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from txnframework.testing.servers.clusters import LOCALHOST, ServerCluster, ServerProcess, started_until_exit
from txnframework.testing.servers.processes import free_ports

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


HOSTS_VARIABLE = "TXN_TEST_ZOOKEEPER_HOSTS"
"""The environment variable that names servers to test with, ``host:port,host:port``, instead of starting one."""

TICK_MS = 200
"""ZooKeeper's unit of time: the shortest session timeout is two ticks, and sessions expire at a tick."""

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ANSWER_SECONDS_MAX = 1.0
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


class ZooKeeperServer(ServerProcess):
    """One server, single or in an ensemble, on its own ports."""

    def __init__(self, directory: Path, number: int, ports: tuple[int, int], setup: Setup) -> None:
        super().__init__(directory, ports[0])
        self.secure_port = ports[1]
        self._number = number
        self._setup = setup

    @property
    def secure_host(self) -> str:
        """The address of the server for TLS; a certificate names the host ``localhost``."""
        return f"localhost:{self.secure_port}"

    def command(self) -> Sequence[str]:
        """Write the configuration into the directory, and return the command that runs the server."""
        settings = _SETTINGS | {"dataDir": str(self.directory), "clientPort": str(self.port)}
        settings |= {"clientPortAddress": LOCALHOST, **self._setup.settings}
        if self._setup.is_secure:
            settings |= {"secureClientPort": str(self.secure_port), "secureClientPortAddress": LOCALHOST}
        (self.directory / "myid").write_text(f"{self._number}\n")
        configuration = self.directory / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [*java_command(), *_JAVA_OPTIONS, *self._setup.java_options, _MAIN, str(configuration)]

    def ask(self, word: str) -> str:
        """Return the reply to a four-letter command, such as ``srvr`` or ``mntr``; empty without a reply."""
        return _ask(LOCALHOST, self.port, word)

    def mode(self) -> str:
        """Return ``leader``, ``follower`` or ``standalone``; empty while the server does not serve."""
        lines = (line.partition(": ") for line in self.ask("srvr").splitlines())
        return next((value for name, _, value in lines if name == "Mode"), "")


class ZooKeeper(ServerCluster[ZooKeeperServer]):
    """One server or an ensemble, in ``directory``."""

    kind = "ZooKeeper"

    def __init__(self, directory: Path, servers: int = 1, setup: Setup | None = None) -> None:
        setup = setup or Setup()
        ports = free_ports(4 * servers)
        plain, secure, quorum, election = (ports[kind::4] for kind in range(4))
        members = {
            f"server.{number}": f"{LOCALHOST}:{to_leader}:{to_elect}"
            for number, to_leader, to_elect in zip(count(1), quorum, election, strict=False)
            if servers > 1
        }
        super().__init__(
            tuple(
                ZooKeeperServer(directory / f"server-{number}", number, both, setup=Setup(members).and_also(setup))
                for number, both in zip(count(1), zip(plain, secure, strict=True), strict=False)
            )
        )

    def wait_until_serving(self) -> None:
        """Return when every server that runs and is not paused serves clients; these must be a majority."""
        self.wait(self._modes_if_all_serve)

    def leader(self) -> ZooKeeperServer:
        """Return the leader, or the only server; wait until there is one."""
        return self.wait(lambda: next((one for one in self.live() if one.mode() in ("leader", "standalone")), None))

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """Return the followers of the leader; wait until every server that runs and is not paused serves."""
        return tuple(server for server, mode in self.wait(self._modes_if_all_serve).items() if mode == "follower")

    def _modes_if_all_serve(self) -> dict[ZooKeeperServer, str] | None:
        modes = {server: server.mode() for server in self.live()}
        return modes if all(modes.values()) else None


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
    return started_until_exit("zookeeper", ZooKeeper)
