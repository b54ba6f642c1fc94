"""A cluster of three servers whose members can be killed, paused, and cut off from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from txnframework.plugin import Server, ServerMember
from txnframework_nats.testing.servers.nats import Nats, NatsServer
from txnframework_nats.testing.servers.routes import CuttableRoutes

_SERVERS = 3


@contextmanager
def started_cluster() -> Iterator[Server]:
    """Start a cluster; it is removed with its data at the end of the block."""
    with (
        TemporaryDirectory(prefix="txnframework-nats-") as directory,
        CuttableRoutes(_SERVERS) as routes,
        Nats(Path(directory), _SERVERS, routes=routes) as nats,
    ):
        members = tuple(_member(nats, routes, index, server) for index, server in enumerate(nats.servers))
        yield Server(f"nats://{nats.hosts}/txnframework", nats.stop, nats.start, members)


def _member(nats: Nats, routes: CuttableRoutes, index: int, server: NatsServer) -> ServerMember:
    def recover() -> None:
        routes.restore()
        if not server.is_running:
            server.start()
        elif server.is_paused:
            server.resume()
        nats.wait_until_serving()

    failures: dict[str, Callable[[], None]] = {
        "kill": server.kill,
        "pause": server.pause,
        "cut": partial(routes.cut, index),
        "stall": partial(routes.stall, index),
    }
    return ServerMember(server.name, failures, recover)
