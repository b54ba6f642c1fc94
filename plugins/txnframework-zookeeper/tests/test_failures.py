"""An ensemble fails while several processes use it.

No transaction is partial, no acknowledgment is lost, all processes see the same outcomes, and all recover without help.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from txnframework.client import LoopThread
from txnframework.testing.servers.proxy import Proxy
from txnframework_zookeeper.testing.servers.frames import Operation, ZooKeeperTap
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper

sys.path.insert(0, str(Path(__file__).parent))  # for what these tests have in common

from chains import SESSION_TIMEOUT_MS
from stories import PATIENCE_S, story

COMMITS = 3
SHARED_BY_ALL = 12
"""Which write, of all that come from now on, something is done to; so many of each worker's are a few transactions."""


class Moment:
    """Does something once, when the given write comes by: before it reaches its server, or when its reply is lost."""

    def __init__(self, number: int, at_reply: bool, do: Callable[[], None]) -> None:
        self._left = number
        self._at_reply = at_reply
        self._do = do
        self.has_come = threading.Event()

    def comes(self, operation: Operation | None, is_reply: bool) -> bool:
        """Return whether this is it; then it has been done."""
        if operation is None or not operation.writes or is_reply is not self._at_reply:
            return False
        self._left -= 1
        if self._left != 0:
            return False
        self._do()
        self.has_come.set()
        return True


class Tap(ZooKeeperTap):
    """Shows what passes to the moment that is waited for."""

    def __init__(self, ways: Ways, proxy: Callable[[], Proxy]) -> None:
        super().__init__()
        self._ways = ways
        self._proxy = proxy

    def request(self, operation: Operation | None) -> bool:
        self._ways.comes(operation, False)
        return True

    def reply(self, operation: Operation | None) -> bool:
        if self._ways.comes(operation, True):
            self._proxy().reset_connections()
            return False
        return True


class Ways:
    """A proxy before each server."""

    def __init__(self, zookeeper: ZooKeeper, loop: LoopThread, stack: ExitStack) -> None:
        self.moment: Moment | None = None
        self._proxies: list[Proxy] = []
        for number, server in enumerate(zookeeper.servers):
            proxy = Proxy(("127.0.0.1", server.port), lambda at=number: Tap(self, lambda: self._proxies[at]))
            self._proxies.append(proxy)
            loop.run(proxy.__aenter__())
            stack.callback(lambda proxy=proxy: loop.run(proxy.__aexit__(None, None, None)))
        self.hosts = ",".join(f"{host}:{port}" for host, port in (proxy.address for proxy in self._proxies))

    def comes(self, operation: Operation | None, is_reply: bool) -> bool:
        """Ask the moment, if there is one."""
        return self.moment is not None and self.moment.comes(operation, is_reply)


@pytest.fixture
def zookeeper(ensemble: ZooKeeper) -> ZooKeeper:
    """The servers of this module, all at work again, whatever a test before has left of them."""
    for server in ensemble.servers:
        if server.is_paused:
            server.resume()
    ensemble.start()
    return ensemble


@pytest.fixture
def place() -> str:
    """Where the stores of this test are on the servers."""
    return f"chains-{secrets.token_hex(8)}"


@contextmanager
def ways(zookeeper: ZooKeeper) -> Iterator[Ways]:
    """Put a proxy before each server."""
    loop = LoopThread()
    with ExitStack() as stack:
        stack.callback(loop.stop)
        yield Ways(zookeeper, loop, stack)


@pytest.mark.parametrize("at_reply", [False, True], ids=["asked", "applied"])
def test_leader_killed_in_mid_commit(zookeeper: ZooKeeper, place: str, tmp_path: Path, at_reply: bool) -> None:
    """The leader dies while a write is on its way, or after the write was applied and before its reply."""
    leader = zookeeper.leader()
    with ways(zookeeper) as before, story(f"zookeeper://{before.hosts}/{place}", tmp_path) as told:
        moment = before.moment = Moment(SHARED_BY_ALL, at_reply, leader.kill)
        assert moment.has_come.wait(PATIENCE_S)
        told.go_on(COMMITS)
        assert zookeeper.leader() is not leader
        leader.start()
        told.go_on(COMMITS)
        told.finish()


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_server_paused_for_longer_than_a_session(zookeeper: ZooKeeper, place: str, tmp_path: Path, who: str) -> None:
    """The other servers continue; when the paused one resumes, its outdated state does no damage."""
    with story(f"zookeeper://{zookeeper.hosts}/{place}", tmp_path) as told:
        server = zookeeper.leader() if who == "leader" else zookeeper.followers()[0]
        server.pause()
        went_on = threading.Event()
        threading.Timer(1.5 * SESSION_TIMEOUT_MS / 1000, went_on.set).start()
        told.go_on(COMMITS)
        assert went_on.wait(PATIENCE_S)
        told.go_on(1)
        server.resume()
        told.go_on(COMMITS)
        told.finish()


def test_majority_lost(zookeeper: ZooKeeper, place: str, tmp_path: Path) -> None:
    """Without a majority, nothing is decided and every client gets an error; when it is back, all continue."""
    with story(f"zookeeper://{zookeeper.hosts}/{place}", tmp_path) as told:
        lost = zookeeper.servers[:2]
        for server in lost:
            server.kill()
        told.troubled()
        for server in lost:
            server.start()
        told.go_on(COMMITS)
        told.finish()
