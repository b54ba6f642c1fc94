"""Addresses that commands serve at."""

from __future__ import annotations

import socket

import pytest

from txnframework.cli.addresses import is_local, listening_socket, parse_address, shown_address
from txnframework.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:0", ("::1", 0)),
        ("gateway.example:65535", ("gateway.example", 65535)),
    ],
)
def test_address(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text, "--listen", "127.0.0.1:1") == found


@pytest.mark.parametrize("text", ["", "80", ":80", "host", "host:", "host:x", "host:-1", "host:65536", "host:\u0661"])
def test_address_of_another_form(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--admin .*: write HOST:PORT, such as 127\.0\.0\.1:1$"):
        parse_address(text, "--admin", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("LOCALHOST", True)]
    + [(one, False) for one in ("0.0.0.0", "::", "192.0.2.1", "gateway.example", "")],
)
def test_local_address(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_connections_do_not_delay_answers() -> None:
    with listening_socket("127.0.0.1", 0, "--listen") as listening:
        host, port = shown_address("127.0.0.1", listening).split(":")
        with socket.create_connection((host, int(port))), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_address_in_use() -> None:
    with listening_socket("127.0.0.1", 0, "--listen") as listening:
        port = listening.getsockname()[1]
        with pytest.raises(InvalidInput, match=rf"^--admin: cannot listen at 127\.0\.0\.1:{port}: "):
            listening_socket("127.0.0.1", port, "--admin")
