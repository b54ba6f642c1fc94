"""How Spark's Python workers start in a local session: settings, sockets, and a nursery that they are forked from."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from txnframework_spark_workers import DAEMON_MODULE, NURSERY, RUNNER_MODULE

WORKER_SETTINGS: Final[Mapping[str, str]] = {"spark.python.daemon.module": DAEMON_MODULE}
"""Session settings with which workers start with all modules imported."""

_PATH_BYTES_MAX: Final = 100
"""A length that every system accepts for the path of a Unix socket."""

_SPARKS_SOCKET: Final = f".{uuid.UUID(int=0)}.sock"
"""A name of the form that Spark uses for its sockets."""


def worker_sockets(folder: Path) -> Mapping[str, str]:
    """
    Return settings that make the JVM and its workers use Unix sockets in ``folder``; empty if its path cannot be used.

    The answer to a small micro-batch is a few small packets. TCP delays some of these for tens of milliseconds. A path
    is unusable if it is too long, or has capital letters: Spark 4.3 gives the path of the state of
    ``transformWithState`` to its workers in lower case.
    """
    socket_path = os.fspath(folder / _SPARKS_SOCKET)
    if len(os.fsencode(socket_path)) > _PATH_BYTES_MAX or socket_path != socket_path.lower():
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


INTERPRETER_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

_INTERPRETER: Final = """#!/bin/sh
# Starts Python. Daemons and runners of Spark start as those of txnframework_spark_workers.
case "$1 $2" in
    "-m pyspark.daemon") shift 2; exec {python} -m {daemon} "$@" ;;
    "-m pyspark.sql.streaming."*) shift; exec {python} -m {runner} "$@" ;;
    *) exec {python} "$@" ;;
esac
"""
"""
The daemon module of a session's settings applies to the workers of tasks only. The driver's workers, which plan and
commit each batch, are started by the names of Spark's own modules.
"""


@contextlib.contextmanager
def worker_nursery(folder: Path) -> Iterator[None]:
    """
    Run a nursery, from which a JVM that is started in the block forks its Python workers; stop it after the block.

    The nursery starts immediately, so it has imported all modules when the JVM is ready. ``folder`` holds its socket,
    and the program that the JVM starts in the place of this interpreter.
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
    interpreter = _make_interpreter(folder / f"python-{os.getpid()}")
    # Not executable: the folder is on a file system on which no program may be started.
    interpreters = dict.fromkeys(INTERPRETER_VARIABLES, str(interpreter)) if os.access(interpreter, os.X_OK) else {}
    try:
        with _environment({NURSERY: str(path), **interpreters}):
            yield
    finally:
        if nursery.stdin is not None:
            nursery.stdin.close()
        nursery.wait()
        path.unlink(missing_ok=True)
        interpreter.unlink(missing_ok=True)


def _make_interpreter(file: Path) -> Path:
    python = shlex.quote(sys.executable)
    file.write_text(_INTERPRETER.format(python=python, daemon=DAEMON_MODULE, runner=RUNNER_MODULE), encoding="utf-8")
    file.chmod(0o700)
    return file


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
