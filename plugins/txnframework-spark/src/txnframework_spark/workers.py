"""Start of Python workers and their sockets; the nursery, if executors run in the driver's JVM."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from txnframework_spark_workers import DAEMON_MODULE, NURSERY

WORKER_SETTINGS: Final[Mapping[str, str]] = {"spark.python.daemon.module": DAEMON_MODULE}
"""Session settings with which workers start with all modules imported."""

_PATH_BYTES_MAX: Final = 100
"""A length that every system accepts for the path of a Unix socket."""

_SPARKS_SOCKET: Final = f".{uuid.UUID(int=0)}.sock"
"""A name of the form that Spark uses for its sockets."""


def worker_sockets(folder: Path) -> Mapping[str, str]:
    """Return settings that make the JVM and its workers use Unix sockets in ``folder``; empty if its path is too long.

    The answer to a small micro-batch is a few small packets. TCP delays some of these for tens of milliseconds.
    """
    if len(os.fsencode(folder / _SPARKS_SOCKET)) > _PATH_BYTES_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


@contextlib.contextmanager
def worker_nursery(folder: Path) -> Iterator[None]:
    """
    Run a nursery, from which a JVM that is started in the block forks its Python workers; stop it after the block.

    The nursery starts at once, so it has imported all modules when the JVM is ready. Its socket is in ``folder``.
    """
    path = folder / f"workers-{os.getpid()}"
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        yield  # workers start without a nursery
        return
    # The values that Spark sets for workers.
    at_start = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "OMP_NUM_THREADS": "1"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(os.fspath(path))
        listening.listen()
        nursery = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
            [sys.executable, "-m", "txnframework_spark_workers.nursery", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **at_start},
            pass_fds=(listening.fileno(),),
            process_group=0,
        )
    outer = os.environ.get(NURSERY)
    os.environ[NURSERY] = str(path)
    try:
        yield
    finally:
        if outer is None:
            del os.environ[NURSERY]
        else:
            os.environ[NURSERY] = outer
        if nursery.stdin is not None:
            nursery.stdin.close()
        nursery.wait()
        path.unlink(missing_ok=True)
