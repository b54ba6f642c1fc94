"""Slow or silent clients do not block others, fill the log, or use up the server's file descriptors."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from txnframework.cli.addresses import listening_socket
from txnframework.cli.connections import BoundedListener, Connections, within_file_limit
from txnframework.cli.wsgi_server import serving_in_threads

resource = pytest.importorskip("resource")

PATIENCE_S = 60
HOST = "127.0.0.1"


class Site:
    """A server that accepts on request, its connections, and a clock that the test advances."""

    def __init__(self, exits: ExitStack, connections_max: int) -> None:
        self.now_s = 100.0
        self.connections = Connections(connections_max, wait_s=10, now=lambda: self.now_s)
        listening = listening_socket(HOST, 0, "--listen")
        self.listener = exits.enter_context(BoundedListener(listening, self.connections))
        self.port = self.listener.getsockname()[1]
        self._exits = exits

    def knock(self) -> socket.socket:
        """Return the client's end of a connection that waits to be accepted."""
        return self._exits.enter_context(socket.create_connection((HOST, self.port), timeout=PATIENCE_S))

    def enter(self) -> tuple[socket.socket, socket.socket, Any]:
        """Return both ends of a connection that is accepted, and the address of the client; time passes."""
        client = self.knock()
        accepted, peer = self.listener.accept()
        self._exits.enter_context(accepted)
        self.now_s += 1
        return client, accepted, peer


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def has_ended(client: socket.socket) -> bool:
    """Return whether the server has ended a connection on which it writes nothing."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_new_connection_replaces_the_slowest(exits: ExitStack) -> None:
    """The slowest is the client for which the server has waited the longest.

    Clients that wait for the server remain.
    """
    site = Site(exits, 3)
    (answered, _, peer), (slowest, _, _), (slow, _, _) = site.enter(), site.enter(), site.enter()
    site.connections.answer(peer)
    latest, accepted, _ = site.enter()
    assert slowest.recv(1) == b""
    assert [has_ended(one) for one in (answered, slow, latest)] == [False] * 3
    accepted.sendall(b"x")
    latest.settimeout(PATIENCE_S)
    assert latest.recv(1) == b"x"


def test_a_new_connection_is_closed_if_the_server_waits_for_no_client(exits: ExitStack) -> None:
    site = Site(exits, 1)
    answered, accepted, peer = site.enter()
    site.connections.answer(peer)
    refused = site.knock()
    with pytest.raises(BlockingIOError):
        site.listener.accept()
    assert refused.recv(1) == b""
    assert not has_ended(answered)
    accepted.close()
    site.enter()
    assert len(site.connections) == 1


def test_a_client_that_takes_too_long_loses_its_connection(exits: ExitStack) -> None:
    """A request has one time limit in total; each part of an answer has a limit of its own."""
    site = Site(exits, 9)
    client, _, peer = site.enter()
    began_s = site.connections.answer(peer)
    site.now_s += 1_000
    site.connections.close_overdue()
    assert not has_ended(client), "the client waits for the server"
    for _ in range(3):
        with site.connections.waiting(peer):
            site.now_s += 9
            site.connections.close_overdue()
    assert not has_ended(client), "each part was read in time"
    site.connections.await_request(peer)
    began_s = site.now_s
    for _ in range(2):
        with site.connections.waiting(peer, began_s):
            site.now_s += 4
    site.connections.close_overdue()
    assert not has_ended(client)
    site.connections.answer(peer)
    with site.connections.waiting(peer, began_s):
        site.now_s += 4
        site.connections.close_overdue()
    assert client.recv(1) == b"", "many small parts of a request have no more time than one"


def test_the_log_has_one_line_per_minute(exits: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(exits, 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            site.enter()
        assert [one.getMessage().split(",")[0] for one in caplog.records] == ["there are 1 connections"]
        site.now_s += 60
        site.enter()
    assert [one.getMessage().partition("(")[2] for one in caplog.records] == ["1 so far)", "50 so far)"]


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_without_a_free_file_closes_connections(exits: ExitStack) -> None:
    """The slowest connection is closed, so that the server does not retry in a loop."""
    site = Site(exits, 9)
    slow, _, _ = site.enter()
    waiting = [site.knock() for _ in range(2)]
    with no_more_files():
        for client in waiting:
            with pytest.raises(BlockingIOError, match="the next connection was closed"):
                site.listener.accept()
            assert client.recv(1) == b""
    assert slow.recv(1) == b""
    site.enter()


def test_half_of_the_files_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4_096))
    assert [within_file_limit(wanted) for wanted in (100, 1_000)] == [100, 128]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert within_file_limit(1_000) == 1_000


def page(_: dict[str, Any], respond: Any) -> list[bytes]:
    respond("200 OK", [("Content-Type", "text/plain")])
    return [b"x" * 50_000_000]


def test_a_server_in_threads_ends_slow_connections(capfd: pytest.CaptureFixture[str]) -> None:
    """A silent client, one that sends its request byte by byte, and one that does not read; nothing is logged."""
    before = threading.active_count()
    with serving_in_threads(page, HOST, 0, "--listen", wait_s=0.2) as port, ExitStack() as opened:
        silent, slow, deaf = (
            opened.enter_context(socket.create_connection((HOST, port), timeout=PATIENCE_S)) for _ in range(3)
        )
        deaf.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert deaf.recv(1) == b"H"
        with suppress(ConnectionError):
            while True:
                slow.sendall(b"G")
        assert silent.recv(1) == b""
        threads = [one for one in threading.enumerate() if "process_request" in one.name]
        for one in threads:
            one.join(PATIENCE_S)
        assert threading.active_count() == before + 1
        fresh = opened.enter_context(socket.create_connection((HOST, port), timeout=PATIENCE_S))
        fresh.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert fresh.recv(12) == b"HTTP/1.0 200"
    assert capfd.readouterr() == ("", "")


def test_a_server_in_threads_logs_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    def failing(*_: object) -> list[bytes]:
        raise RuntimeError("the page cannot be written")

    with serving_in_threads(failing, HOST, 0, "--listen") as port, ExitStack() as opened:
        client = opened.enter_context(socket.create_connection((HOST, port), timeout=PATIENCE_S))
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 500"
    assert "the page cannot be written" in caplog.text


def test_an_unknown_connection_is_left_alone() -> None:
    """Clients of a Unix socket have no addresses, for example."""
    connections = Connections(1, now=lambda: 5)
    assert connections.answer(()) == 5
    with connections.waiting(()):
        connections.close_overdue()
    connections.await_request(("127.0.0.1", 1))
    connections.discard(("127.0.0.1", 1), SimpleNamespace())  # type: ignore[arg-type]
    assert len(connections) == 0
