"""Addresses that commands serve at."""

from __future__ import annotations

import ipaddress
import socket

from txnframework.errors import InvalidInput

PORT_MAX = 65_535


def parse_address(text: str, option: str, example: str) -> tuple[str, int]:
    """
    Return the host and the port of ``HOST:PORT``.

    :param option: the option that contains the text; an error names it, and ``example``.
    :raises InvalidInput: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > PORT_MAX:
        raise InvalidInput(f"{option} {text}: write HOST:PORT, such as {example}")
    return host.strip("[]"), int(port)


def is_local(host: str) -> bool:
    """Return whether only programs on this machine reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listening_socket(host: str, port: int, option: str) -> socket.socket:
    """
    Return a socket that listens at an address; port 0 chooses a free one.

    :raises InvalidInput: the address cannot be used; the error names ``option``.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(f"{option}: cannot listen at {host}:{port}: {error.strerror}") from error
    # Connections inherit it. asyncio sets it only where it opens the socket itself, and without it a second answer may
    # wait 40 ms, until the other end has confirmed the first one.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def shown_address(host: str, listening: socket.socket) -> str:
    """Return ``HOST:PORT`` of a socket that listens, for a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
