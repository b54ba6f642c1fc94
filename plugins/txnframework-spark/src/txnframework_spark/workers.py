"""How Python workers begin and are talked to; their nursery, where executors are in the driver's JVM."""

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
"""What a session is given, so that its workers have imported everything when they begin."""

_PATH_BYTES_MAX: Final = 100
"""What every system takes as the path of a Unix socket."""

_SPARKS_SOCKET: Final = f".{uuid.UUID(int=0)}.sock"
"""A name as Spark gives them."""


def worker_sockets(folder: Path) -> Mapping[str, str]:
    """Return settings by which the JVM and its workers talk through Unix sockets in ``folder``, where paths may be so
    long.

    The answer to a small micro-batch is a few small packets, of which TCP holds some back for tens of milliseconds.
    """
    if len(os.fsencode(folder / _SPARKS_SOCKET)) > _PATH_BYTES_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


@contextlib.contextmanager
def worker_nursery(folder: Path) -> Iterator[None]:
    """
    Let a JVM that is started meanwhile have its Python workers forked from one process, which is gone after the block.

    It begins at once, so that it has imported everything when the JVM is up. ``folder``: where its socket is.
    """
    path = folder / f"workers-{os.getpid()}"
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        yield  # workers do without
        return
    # As Spark sets them for workers.
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
