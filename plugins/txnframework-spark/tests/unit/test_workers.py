"""What Spark's Python workers are forked from."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from txnframework_spark.workers import worker_nursery, worker_sockets
from txnframework_spark_workers import DAEMON_MODULE, NURSERY, RUNNER_MODULE

SECRET, THEIRS = "PYTHON_WORKER_FACTORY_SECRET", b"a word that Spark gives in the environment of a daemon"
FORKS = """
import os
import sys
import numpy.random
from txnframework_spark_workers.preload import preload_modules

preload_modules()
import pyarrow as pa

for _ in range(2):
    if not os.fork():
        preloaded = set(sys.modules)
        pa.RecordBatch.from_pydict({"value": pa.array([b"x"], pa.binary())}).column(0).fill_null(b"")
        os.write(1, f"{numpy.random.random()} {sorted(set(sys.modules) - preloaded)}\\n".encode())
        os._exit(0)
    os.wait()
"""


@contextmanager
def daemon(
    changes: Mapping[str, str], python: str = sys.executable, module: str = DAEMON_MODULE
) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """Start a daemon as Spark does, have it fork a worker, and give both; then end it as Spark does."""
    environment = {**os.environ, SECRET: THEIRS.decode(), **changes}
    command = [python, "-m", module, "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            (pid,) = struct.unpack("!i", worker.recv(4))
            worker.sendall(struct.pack("!i", len(THEIRS)) + THEIRS)
            assert worker.recv(6) == struct.pack("!i", 2) + b"ok"
            yield process, psutil.Process(pid)
        process.stdin.close()
        process.wait(timeout=60)


@contextmanager
def nursery_in(folder: Path) -> Iterator[psutil.Process]:
    """Give the process of a nursery."""
    before = {*psutil.Process().children()}
    with worker_nursery(folder):
        (nursery,) = {*psutil.Process().children()} - before
        yield nursery


def test_daemons_come_from_the_nursery_where_there_is_one_that_fits(tmp_path: Path) -> None:
    """Each with its own environment; without one, and under another seed for hashes, they go on by themselves."""
    before = os.environ.get(NURSERY)
    with nursery_in(tmp_path) as nursery:
        with daemon({}) as (_, worker):
            forked = worker.parent()
            assert forked is not None
            assert forked.parent() == nursery
        with daemon({"PYTHONHASHSEED": "7"}) as (process, worker):
            assert worker.parent() == psutil.Process(process.pid)
        nursery.kill()
        nursery.wait()
        with daemon({}) as (process, worker):
            assert worker.parent() == psutil.Process(process.pid)
    assert os.environ.get(NURSERY) == before
    assert not list(tmp_path.iterdir())


def test_the_drivers_daemons_come_from_the_nursery_too(tmp_path: Path) -> None:
    """Spark starts them by the name of its own module, whatever the settings say; all else starts as it is."""
    with nursery_in(tmp_path) as nursery:
        python = os.environ["PYSPARK_PYTHON"]
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == python
        with daemon({}, python, "pyspark.daemon") as (_, worker):
            forked = worker.parent()
            assert forked is not None
            assert forked.parent() == nursery
        program = "import sys; print(sys.executable, sys.argv[1])"
        done = subprocess.run([python, "-c", program, "an argument"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.executable} an argument\n"


def test_a_runner_comes_from_the_nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own environment, arguments and streams; without a nursery it runs by itself."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(NURSERY, raising=False)  # a session of another test may have one
    (tmp_path / "told.py").write_text("import os, sys; print(os.getppid(), os.environ['OF'], sys.argv[1:])")
    command = [sys.executable, "-m", RUNNER_MODULE, "told", "one", "two"]

    def run() -> list[str]:
        environment = {**os.environ, "OF": "its-own"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split(maxsplit=1)

    said = "its-own ['one', 'two']\n"
    with nursery_in(tmp_path) as nursery:
        assert run() == [str(nursery.pid), said]
    assert run() == [str(os.getpid()), said]


def test_a_nursery_ends_with_its_driver(tmp_path: Path) -> None:
    """Its standard input is then at its end."""
    with nursery_in(tmp_path) as nursery:
        pass
    assert not nursery.is_running()


def test_a_path_that_no_socket_can_have_does_without(tmp_path: Path) -> None:
    before = os.environ.get(NURSERY)
    deep = tmp_path / ("x" * 100)
    with worker_nursery(deep):
        assert os.environ.get(NURSERY) == before
    assert worker_sockets(deep) == {}
    # Spark would look for it in lower case.
    assert worker_sockets(Path("/tmp/Work")) == {}
    assert worker_sockets(Path("/tmp"))["spark.python.unix.domain.socket.dir"] == "/tmp"


def test_workers_import_nothing_and_draw_different_random_numbers() -> None:
    """Forked after the import of numpy, all would continue from one state; pyarrow imports pandas when it converts."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    (first, imported), (second, also) = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert first != second
    assert imported == also == "[]"
