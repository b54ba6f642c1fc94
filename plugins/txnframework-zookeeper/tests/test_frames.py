"""The frames that a proxy before a ZooKeeper decodes."""

from __future__ import annotations

import asyncio
import secrets
import socket

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from txnframework.testing.servers.proxy import Proxy
from txnframework_zookeeper.testing.servers.frames import Operation, ZooKeeperTap
from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts

BOUND_S = 120.0


class Tap(ZooKeeperTap):
    """Records the traffic, and drops the requested frames."""

    def __init__(self, proxies: list[Proxy], lost: set[Operation], seen: list[object]) -> None:
        super().__init__()
        self._proxies, self._lost, self._seen = proxies, lost, seen

    def request(self, operation: Operation | None) -> bool:
        self._seen.append(operation)
        return True

    def reply(self, operation: Operation | None) -> bool:
        self._seen.append(("done", operation))
        if operation not in self._lost:
            return True
        self._lost.clear()
        self._proxies[0].reset_connections()
        return False

    def event(self) -> bool:
        self._seen.append("event")
        return True


async def test_requests_replies_and_events() -> None:
    """Each request is seen with its reply, as are watch events; a lost reply belongs to a completed request."""
    lost: set[Operation] = set()
    seen: list[object] = []
    host, _, port = shared_hosts().split(",")[0].rpartition(":")
    proxies: list[Proxy] = []
    async with asyncio.timeout(BOUND_S), Proxy((host, int(port)), lambda: Tap(proxies, lost, seen)) as proxy:
        proxies.append(proxy)
        await asyncio.to_thread(talk, proxy.address, lost)
    asked = [one for one in seen if isinstance(one, Operation) and one is not Operation.EXISTS]
    assert asked[:3] == [Operation.GET, Operation.CREATE, Operation.SET]
    assert seen.index("event") < seen.index(("done", Operation.SET)), "changes are told before later answers"


def talk(address: tuple[str, int], lost: set[Operation]) -> None:
    """Make a node, change it, and make a second one whose maker hears nothing."""
    path = f"/frames-{secrets.token_hex(8)}"
    client = KazooClient(f"{address[0]}:{address[1]}", timeout=2.0)
    client.start(BOUND_S)
    with socket.create_connection(address, BOUND_S) as connection:
        connection.sendall(b"ruok")
        assert connection.recv(4) == b"imok"
    try:
        with pytest.raises(NoNodeError):
            client.get(path)
        client.create(path, b"one")
        client.exists(path, watch=lambda event: None)
        client.set(path, b"two")
        lost.add(Operation.CREATE)
        with pytest.raises(ConnectionLoss):
            client.create(f"{path}/below", b"")
        assert client.get(f"{path}/below")[0] == b""
        client.delete(path, recursive=True)
    finally:
        client.stop()
        client.close()
