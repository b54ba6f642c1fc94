"""Isolation: clocks, randomness, threads and I/O of the real world are refused, because no seed repeats them."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_FORBIDDEN: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")),
    (time, "sleep"),
    (os, "urandom"),
    (random, "_urandom"),  # used by the module secrets
    *((random, name) for name in ("random", "getrandbits", "randrange", "randint", "choice", "shuffle", "uniform")),
    (threading.Thread, "start"),
    (socket.socket, "__init__"),
)
_TOLERATED = frozenset({"logging", "warnings"})
"""Modules that may use a clock because it does not affect the simulation, such as for the time of a log line."""


class IsolationError(RuntimeError):
    """Simulated code used a real clock, randomness, thread or socket; it must use the injected environment."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} reaches outside of the simulation; time and randomness come from the environment")


@contextmanager
def isolated() -> Iterator[None]:
    """
    Refuse real clocks, randomness, threads and sockets to this thread during the block.

    Functions that a module imported by name earlier (``from time import time``) are not refused. Other threads of the
    process, which were started before, belong to no simulation.
    """
    inside = threading.get_ident()
    originals = [(owner, name, getattr(owner, name)) for owner, name in _FORBIDDEN]
    try:
        for owner, name, original in originals:
            setattr(owner, name, _guarded(f"{owner.__name__}.{name}", original, inside))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _guarded(what: str, original: Callable[..., Any], inside: int) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        if threading.get_ident() != inside or sys._getframe(1).f_globals.get("__name__") in _TOLERATED:
            return original(*args, **options)
        raise IsolationError(what)

    return refuse


def _refused(name: str) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise IsolationError(f"loop.{name}")

    refuse.__name__ = name
    return refuse


class IsolatedLoop(asyncio.AbstractEventLoop):
    """The methods of an event loop that use other threads, processes or I/O; all of them are refused."""

    call_soon_threadsafe: Any = _refused("call_soon_threadsafe")
    run_in_executor: Any = _refused("run_in_executor")
    set_default_executor: Any = _refused("set_default_executor")
    getaddrinfo: Any = _refused("getaddrinfo")
    getnameinfo: Any = _refused("getnameinfo")
    create_connection: Any = _refused("create_connection")
    create_server: Any = _refused("create_server")
    create_unix_connection: Any = _refused("create_unix_connection")
    create_unix_server: Any = _refused("create_unix_server")
    create_datagram_endpoint: Any = _refused("create_datagram_endpoint")
    connect_accepted_socket: Any = _refused("connect_accepted_socket")
    start_tls: Any = _refused("start_tls")
    sendfile: Any = _refused("sendfile")
    connect_read_pipe: Any = _refused("connect_read_pipe")
    connect_write_pipe: Any = _refused("connect_write_pipe")
    subprocess_shell: Any = _refused("subprocess_shell")
    subprocess_exec: Any = _refused("subprocess_exec")
    add_reader: Any = _refused("add_reader")
    remove_reader: Any = _refused("remove_reader")
    add_writer: Any = _refused("add_writer")
    remove_writer: Any = _refused("remove_writer")
    sock_recv: Any = _refused("sock_recv")
    sock_recv_into: Any = _refused("sock_recv_into")
    sock_recvfrom: Any = _refused("sock_recvfrom")
    sock_recvfrom_into: Any = _refused("sock_recvfrom_into")
    sock_sendall: Any = _refused("sock_sendall")
    sock_sendto: Any = _refused("sock_sendto")
    sock_connect: Any = _refused("sock_connect")
    sock_accept: Any = _refused("sock_accept")
    sock_sendfile: Any = _refused("sock_sendfile")
    add_signal_handler: Any = _refused("add_signal_handler")
    remove_signal_handler: Any = _refused("remove_signal_handler")
