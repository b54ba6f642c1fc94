"""
A real NATS server with JetStream on this machine: one server, or a cluster to kill and pause members of.

    with Nats(tmp_path, servers=3) as nats:
        url = f"nats://{nats.hosts}/test"
        nats.leader().kill()

The server writes and syncs each message to disk before it confirms the message. Tests that need only one server use
``shared_hosts()``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from txnframework.testing.servers.clusters import LOCALHOST, ServerCluster, ServerProcess, started_until_exit
from txnframework.testing.servers.processes import free_ports
from txnframework_nats.testing.servers.routes import Routes

HOSTS_VARIABLE = "TXN_TEST_NATS_HOSTS"
"""The environment variable that names servers to test with, ``host:port,host:port``, instead of starting one."""

_ANSWER_SECONDS_MAX = 1.0


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
    monitor: int


class NatsServer(ServerProcess):
    """One server, single or in a cluster, on its own ports."""

    def __init__(self, directory: Path, number: int, ports: _Ports, routes: Routes, setup: Setup) -> None:
        super().__init__(directory, ports.client)
        self.name = f"n{number}"
        self._monitor_port = ports.monitor
        self._configuration = _configuration(self.name, directory, ports, routes.lines(number - 1), setup)

    def command(self) -> Sequence[str]:
        """Write the configuration into the directory, and return the command that runs the server."""
        file = self.directory / "nats.conf"
        file.write_text(self._configuration)
        return [server_command(), "-c", str(file)]

    def ask(self, page: str) -> dict[str, Any]:
        """Return a page of the monitoring service, such as ``healthz`` or ``jsz``; empty without an answer."""
        try:
            url = f"http://{LOCALHOST}:{self._monitor_port}/{page}"
            with urlopen(url, timeout=_ANSWER_SECONDS_MAX) as reply:
                found = json.load(reply)
        except (URLError, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def serves(self) -> bool:
        """Return whether the server serves clients, and is current in the cluster."""
        return self.ask("healthz").get("status") == "ok"


class Nats(ServerCluster[NatsServer]):
    """One server or a cluster, in ``directory``."""

    kind = "NATS"

    def __init__(
        self, directory: Path, servers: int = 1, setup: Setup | None = None, routes: Routes | None = None
    ) -> None:
        numbers = free_ports(2 * servers)
        ports = tuple(map(_Ports, numbers[0::2], numbers[1::2]))
        routes = routes or Routes(servers)
        super().__init__(
            tuple(
                NatsServer(directory / f"server-{number}", number, one, routes, setup or Setup())
                for number, one in enumerate(ports, 1)
            )
        )
        self._has_jetstream = (setup or Setup()).jetstream

    def wait_until_serving(self) -> None:
        """Return when every server that runs and is not paused serves clients; these must be a majority."""
        self.wait(lambda: all(server.serves() for server in self.live()) or None)
        if self._has_jetstream:
            self.leader()

    def leader(self) -> NatsServer:
        """Return the leader of the cluster's own data, or the only server; wait until there is one."""
        if len(self.servers) == 1:
            return self.servers[0]
        return self.wait(self._leader_if_known)

    def leader_of(self, stream: str) -> NatsServer:
        """Return the leader of a stream, or the only server; wait until there is one."""
        if len(self.servers) == 1:
            return self.servers[0]
        return self.wait(lambda: self._stream_leader_if_known(stream))

    def _leader_if_known(self) -> NatsServer | None:
        named = {server.ask("jsz").get("meta_cluster", {}).get("leader", "") for server in self.live()}
        return self._named(named)

    def _stream_leader_if_known(self, stream: str) -> NatsServer | None:
        named = {
            found.get("cluster", {}).get("leader", "")
            for server in self.live()
            for account in server.ask("jsz?streams=true").get("account_details", ())
            for found in account.get("stream_detail", ())
            if found.get("name") == stream
        }
        return self._named(named)

    def _named(self, names: set[str]) -> NatsServer | None:
        """Return the live server on which all live servers agree."""
        return next((server for server in self.live() if names == {server.name}), None)


def shared_hosts() -> str:
    """
    Return the servers to test with: those that ``TXN_TEST_NATS_HOSTS`` names, or one of this process's own.

    That server is started by the first call, and ends with the process. Every test uses a new prefix.
    """
    return os.environ.get(HOSTS_VARIABLE) or _own_server().hosts


def shared_cluster_hosts() -> str:
    """Return three servers of this process's own, which end with the process; they are started by the first call."""
    return _own_cluster().hosts


def _configuration(name: str, directory: Path, ports: _Ports, routes: Sequence[str], setup: Setup) -> str:
    """Return the configuration of a server."""
    lines = [
        f'server_name: "{name}"',
        f'listen: "{LOCALHOST}:{ports.client}"',
        f'http: "{LOCALHOST}:{ports.monitor}"',
    ]
    if setup.jetstream:
        store = json.dumps(str(directory / "jetstream"))
        lines.append(f"jetstream {{ store_dir: {store}, sync_interval: {setup.sync_interval} }}")
    return "\n".join([*lines, *routes, *setup.lines, ""])


@cache
def _own_server() -> Nats:
    return started_until_exit("nats", Nats)


@cache
def _own_cluster() -> Nats:
    return started_until_exit("nats", lambda directory: Nats(directory, 3))
