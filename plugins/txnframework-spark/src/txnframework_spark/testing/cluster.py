"""
Spark's own standalone cluster on this machine, from PySpark alone; for tests, also of plugins.

    with StandaloneCluster(tmp_path / "cluster") as cluster:
        builder = SparkSession.builder.master(cluster.master)
        for name, value in cluster.conf.items():
            builder = builder.config(name, value)

One master and some workers, each with one core, little memory and its own working folder. So a pipeline has the same
requirements as on a real cluster. An executor and its Python workers belong to the session of its worker, so a test can
find and kill them: ``cluster.executors()``. No process outlives the ``with`` block, however the test ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from txnframework.testing.servers.processes import Guard
from txnframework_spark.session import check_java, make_spark_home
from txnframework_spark.testing.processes import JVM, kill_process, list_processes, wait_for_exit
from txnframework_spark_workers import NURSERY

_LOCALHOST: Final = "127.0.0.1"
_START_SECONDS_MAX: Final = 60.0
_GONE_SECONDS_MAX: Final = 15.0
_LOOK_SECONDS: Final = 0.05
_LAST_LINES: Final = 20
_DAEMON_MEMORY: Final = "256m"
_MASTER_ADDRESS: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_PORT: Final = re.compile(r"Starting Spark worker \S+:(\d+) with")
_PAGE_ADDRESS: Final = re.compile(r"MasterWebUI.*(http://\S+:\d+)")
_COPYING: Final = """
[pipeline]
name = "copying"
checkpoint = "checkpoint"
trigger = "processing_time"

[spark]
master = "MASTER"

[spark.conf]
CONF

[[sources]]
view = "messages"
subscribe = "in"
group_id = "copying"
options = { startingOffsets = "earliest", maxOffsetsPerTrigger = MESSAGES_MAX }

[[sinks]]
topic = "out"

[[sinks]]
topic = "copies"
"""


@dataclass(frozen=True, slots=True)
class _Daemon:
    process: subprocess.Popen[bytes]
    guard: Guard
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def last_words(self) -> str:
        return "\n".join(self.said().splitlines()[-_LAST_LINES:])


class StandaloneCluster:
    """
    A master and its workers, from the beginning of the ``with`` block to its end.

    :param folder: contains all files of the cluster; it is created if it does not exist.
    :param workers: the number of workers, each with one core.
    :param hosts: addresses of this machine, assigned to the workers in turn; Spark starts a speculative copy of a task
        only on another host than the first.
    :param memory_mb: the memory that a worker gives to its executors in total; ``conf`` requests all of it for each.

    Every wait is one of real time, and blocks.
    """

    def __init__(
        self, folder: Path, workers: int = 2, memory_mb: int = 512, hosts: Sequence[str] = (_LOCALHOST,)
    ) -> None:
        self.folder = folder.resolve()
        self.memory_mb = memory_mb
        self._count = workers
        self._hosts = tuple(hosts)
        self._master: _Daemon | None = None
        self._workers: list[_Daemon] = []
        self._started = 0
        self._address = ""
        self._page = ""

    @property
    def master(self) -> str:
        """The address for ``spark.master``: ``spark://127.0.0.1:PORT``."""
        return self._address

    @property
    def conf(self) -> Mapping[str, str]:
        """The settings of a driver that uses the whole cluster and keeps its own files below the folder."""
        scratch = self.folder / "driver"
        scratch.mkdir(exist_ok=True)
        return {
            "spark.master": self._address,
            "spark.driver.host": _LOCALHOST,
            "spark.driver.bindAddress": _LOCALHOST,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": _java_options(scratch),
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": _java_options("."),
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.shuffle.partitions": str(self._count),
            "spark.ui.enabled": "false",
        }

    def copying_pipeline(self, messages_max: int, conf: Mapping[str, str] | None = None) -> str:
        """
        Return a pipeline file: on this cluster, the topic ``in`` is copied to both topics ``out`` and ``copies``.

        ``messages_max``: of a micro-batch. ``conf``: further settings of Spark.
        """
        settings = {name: value for name, value in self.conf.items() if name != "spark.master"} | dict(conf or {})
        lines = "\n".join(f'"{name}" = "{value}"' for name, value in settings.items())
        text = _COPYING.replace("MASTER", self.master).replace("CONF", lines)
        return text.replace("MESSAGES_MAX", str(messages_max))

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The workers: JVMs that start executors."""
        return tuple(worker.process.pid for worker in self._workers)

    def executors(self) -> tuple[int, ...]:
        """Return the living JVMs of executors; there are some while an application runs."""
        return tuple(
            found.pid
            for pid in self.worker_pids
            for found in list_processes(pid)
            if found.name == JVM and found.pid != pid
        )

    def python_workers(self) -> tuple[int, ...]:
        """Return the living Python processes of the executors."""
        return tuple(found.pid for pid in self.worker_pids for found in list_processes(pid) if found.name != JVM)

    def start_worker(self) -> int:
        """Start one more worker, for example after a kill; return its pid when the master has registered it."""
        self._started += 1
        place = self.folder / f"worker-{self._started}"
        options = ["--cores", "1", "--memory", f"{self.memory_mb}M", "--work-dir", str(place / "work")]
        host = self._hosts[(self._started - 1) % len(self._hosts)]
        started = self._start("worker.Worker", place, [*options, self._address], host)
        self._workers.append(started)
        self._wait_for("the worker's address", lambda: _WORKER_PORT.search(started.said()), started)
        # Identified by its port, because the master lists a killed worker until a timeout.
        port = int(_found(_WORKER_PORT, started.said()))
        self._wait_for("the worker to be registered", lambda: port in self._registered(), started)
        return started.process.pid

    def kill_worker(self, pid: int) -> None:
        """Kill a worker with its executors and their Python workers together, as a power failure does."""
        (worker,) = (worker for worker in self._workers if worker.process.pid == pid)
        self._workers.remove(worker)
        self._kill(worker)

    def __enter__(self) -> Self:
        check_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        make_spark_home(self.folder / "spark-home")
        try:
            self._start_master()
            for _ in range(self._count):
                self.start_worker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End master, workers, executors and their Python workers; return when all have ended."""
        # The master ends first: it would replace executors that end.
        daemons = [*([self._master] if self._master is not None else []), *self._workers]
        self._master, self._workers = None, []
        for daemon in daemons:
            self._kill(daemon)

    def _kill(self, daemon: _Daemon) -> None:
        daemon.process.kill()
        daemon.process.wait()
        daemon.guard.dismiss()
        session = daemon.process.pid
        # No process is left that starts executors, and an executor may outlive its worker.
        for found in list_processes(session):
            kill_process(found.pid, session)
        if not wait_for_exit(session, _GONE_SECONDS_MAX):
            raise RuntimeError(f"processes of the cluster in {self.folder} survived SIGKILL: {list_processes(session)}")

    def _start_master(self) -> None:
        self._master = self._start("master.Master", self.folder / "master", [])
        said = self._master.said
        self._wait_for("the master's address", lambda: _MASTER_ADDRESS.search(said()), self._master)
        self._wait_for("the master's page", lambda: _PAGE_ADDRESS.search(said()), self._master)
        self._address = _found(_MASTER_ADDRESS, said())
        self._page = _found(_PAGE_ADDRESS, said())

    def _start(self, what: str, place: Path, arguments: list[str], host: str = _LOCALHOST) -> _Daemon:
        scratch = place / "tmp"
        scratch.mkdir(parents=True)
        home = self.folder / "spark-home"
        # The environment of this process's own Spark, including its nursery, is not passed on: another machine would
        # not have it.
        ours = ("SPARK_", "PYSPARK_", NURSERY)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(place),
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_LOCAL_IP": host,
            "SPARK_PUBLIC_DNS": host,
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": _java_options(scratch),
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(scratch),
        }
        # Port 0: the system chooses a port, and the log contains it.
        where = ["--host", host, "--port", "0", "--webui-port", "0"]
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *where, *arguments]
        log = place / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - PySpark's own program, with arguments of our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=place,
                start_new_session=True,
            )
        return _Daemon(process, Guard(process.pid), log)

    def _registered(self) -> set[int]:
        """Return the ports of the workers that the master regards as alive."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=_START_SECONDS_MAX) as answer:  # noqa: S310 - ours
            state: dict[str, Any] = json.load(answer)
        return {worker["port"] for worker in state["workers"] if worker["state"] == "ALIVE"}

    def _wait_for(self, what: str, is_so: Callable[[], object], daemon: _Daemon) -> None:
        until = time.monotonic() + _START_SECONDS_MAX
        while not is_so():
            if daemon.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"waited in vain for {what} of the cluster in {self.folder}; the end of {daemon.log}:\n"
                    f"{daemon.last_words()}"
                )
            time.sleep(_LOOK_SECONDS)


def _java_options(scratch: Path | str) -> str:
    """Return options of a JVM that starts fast, uses little memory, and writes only in ``scratch``."""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={scratch}"


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    assert match is not None
    return match[1]
