"""The servers of ``txnframework_zookeeper.testing.servers.zookeeper``: what the other tests of this plugin rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SessionClosedRequireSaslError

from txnframework_zookeeper.testing.servers.security import sasl_users, tls
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper, ZooKeeperServer, shared_hosts

BOUND_S = 120.0


@contextmanager
def client(hosts: str, **options: object) -> Iterator[KazooClient]:
    """Connect; the connection is closed at the end of the block."""
    connected = KazooClient(hosts, **options)
    try:
        connected.start(BOUND_S)
        yield connected
    finally:
        connected.stop()
        connected.close()


def test_what_was_confirmed_outlives_a_kill(tmp_path: Path) -> None:
    """A server that is killed and restarted has its confirmed writes, at the same address."""
    with ZooKeeper(tmp_path) as zookeeper:
        assert zookeeper.leader() is zookeeper.servers[0]
        with client(zookeeper.hosts) as connected:
            connected.create("/a", b"one")
        zookeeper.servers[0].kill()
        assert not zookeeper.servers[0].mode()
        zookeeper.start()
        with client(zookeeper.hosts) as connected:
            assert connected.get("/a")[0] == b"one"


def test_ensemble(tmp_path: Path) -> None:
    """Any two of three servers work: a killed or paused leader is replaced, and both come back."""
    with ZooKeeper(tmp_path, servers=3) as zookeeper:
        first = zookeeper.leader()
        assert len(zookeeper.followers()) == 2
        first.kill()
        zookeeper.wait_until_serving()
        second = zookeeper.leader()
        assert second is not first
        first.start()
        zookeeper.wait_until_serving()
        second.pause()
        assert zookeeper.leader() is not second
        second.resume()
        zookeeper.wait_until_serving()
        with client(zookeeper.hosts) as connected:
            connected.create("/a", b"one")


def test_one_answer_says_who_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may not answer a second time, so one answer names the leader."""
    answers = iter(["", "standalone", "", "", "standalone", ""])
    monkeypatch.setattr(ZooKeeperServer, "is_running", True)
    monkeypatch.setattr(ZooKeeperServer, "mode", lambda _: next(answers))
    zookeeper = ZooKeeper(tmp_path)
    assert zookeeper.leader() is zookeeper.servers[0]
    assert next(answers) == ""
    assert zookeeper.followers() == ()
    assert next(answers) == ""


def test_server_ends_with_who_started_it() -> None:
    """A server ends with the process that started it, even if that was killed."""
    program = "import os; from txnframework_zookeeper.testing.servers.zookeeper import _own_server as own;"
    program += "print(own().servers[0].process_id, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))


def gone(pid: int) -> bool:
    """Return whether there is no such process, or soon is none."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_named_servers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment names servers, none is started."""
    monkeypatch.setenv("TXN_TEST_ZOOKEEPER_HOSTS", "one.example:2181,two.example:2181")
    assert shared_hosts() == "one.example:2181,two.example:2181"


def test_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, one sentence says what to install."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs Java: install a JDK"):
        ZooKeeper(tmp_path / "data").start()


def test_security(tmp_path: Path) -> None:
    """A server is reached by TLS, known by its certificate; where it asks for a login, nothing is done without."""
    made = tls(tmp_path)
    setup = made.setup.and_also(sasl_users(tmp_path, {"someone": "secret"}))
    with ZooKeeper(tmp_path / "data", setup=setup) as zookeeper:
        options = {"use_ssl": True, "ca": str(made.certificate)}
        host = zookeeper.servers[0].secure_host
        with client(host, **options) as connected, pytest.raises(SessionClosedRequireSaslError):
            connected.get_children("/")
