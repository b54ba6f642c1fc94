"""``python -m txnframework_spark_workers.nursery NUMBER``: forks daemons and runners until its standard input ends.

NUMBER is the descriptor of a Unix socket that is already listening.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from txnframework_spark_workers.daemon import LENGTH_BYTES, REQUEST_BYTES_MAX, SPARKS_DAEMON, STANDARD, TAKEN
from txnframework_spark_workers.preload import preload_modules

AT_START: Final = ("PYTHONHASHSEED", "OMP_NUM_THREADS")
"""Variables that are read only when an interpreter starts or a library is imported: all daemons share their values."""

_REQUEST_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request to fork a process: its module, command line, environment, and standard input, output and error."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    streams: tuple[int, ...]


def fits(wanted: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Return whether a daemon with environment ``wanted`` may be forked from a process with environment ``here``."""
    return all(wanted.get(name, here.get(name)) == here.get(name) for name in AT_START)


def serve(descriptor: int) -> None:
    """Import all modules, then fork a daemon for each request; return when standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit status of daemons is not needed
    with socket.socket(fileno=descriptor) as listening:
        # A daemon that connects during the import waits no longer than its own import would take.
        preload_modules()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(listening, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if 0 in ready:
                return
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                _serve_request(connection, listening)


def _serve_request(connection: socket.socket, listening: socket.socket) -> None:
    connection.settimeout(_REQUEST_WITHIN_S)
    request = _receive_request(connection)
    try:
        if not fits(request.environment, os.environ) or os.fork():
            return
        try:
            listening.close()
            connection.settimeout(None)
            connection.sendall(TAKEN)
            _run(request)
            os._exit(0)
        except SystemExit as ended:
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    finally:
        for stream in request.streams:
            os.close(stream)


def _receive_request(connection: socket.socket) -> Request:
    head, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, len(STANDARD))
    try:
        length = int.from_bytes(head, "big")
        if len(head) != LENGTH_BYTES or len(streams) != len(STANDARD) or length > REQUEST_BYTES_MAX:
            raise ValueError("this is no request for a daemon")
        data = bytearray()
        while len(data) < length:
            part = connection.recv(length - len(data))
            if not part:
                raise ValueError("the request breaks off")
            data += part
        document: dict[str, Any] = json.loads(data)
        return Request(document["module"], document["arguments"], document["environment"], tuple(streams))
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def _run(request: Request) -> None:
    """Run the module in this process; a daemon ends by SystemExit."""
    for target, stream in zip(STANDARD, request.streams, strict=True):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[:] = request.arguments
    paths = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.module != SPARKS_DAEMON:
        runpy.run_module(request.module, run_name="__main__")
        sys.stdout.flush()
        return
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
