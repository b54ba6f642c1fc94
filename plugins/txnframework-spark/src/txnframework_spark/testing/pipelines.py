"""A pipeline in separate processes, which a test stops at a pause point and kills, freezes or releases there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from txnframework_spark.microbatch.pause import VARIABLE
from txnframework_spark.session import make_spark_home
from txnframework_spark.testing.processes import FAILURE, DriverProcess, KilledProcesses, list_processes

WAIT_S: Final = 900.0
"""The default limit of every wait, for what hangs: on a busy machine, the start of Spark alone takes minutes."""
_LOOK_EVERY_S: Final = 0.05
_FREEZES_MAX: Final = 100


class PipelineProcess:
    """
    One start of a driver, which waits at ``points`` (as ``microbatch.pause`` writes them); killed when the block ends.

    :param command: the program of the driver, which calls ``exit_with_parent``.
    :param directory: for the log and the pauses; several drivers may be started in it, under different names.
    :param wait_s: the limit of every wait; AssertionError says what did not happen, with the end of the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        name: str,
        points: Sequence[str] = (),
        wait_s: float = WAIT_S,
    ) -> None:
        self._wait_s = wait_s
        home = directory / "spark-home"
        if not home.exists():
            make_spark_home(home)
        self._pauses = directory / f"pauses-{name}"
        self._pauses.mkdir()
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1"}
        environment.pop(VARIABLE, None)
        if points:
            environment[VARIABLE] = f"{','.join(points)};{self._pauses}"
        self._driver = DriverProcess(command, environment, directory / f"{name}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- waiting --------------------------------------------------------------------------------------

    def arrival(self, point: str) -> dict[str, Any]:
        """Return the report of the first process that arrived at the point."""
        return self.arrivals(point, 1)[0]

    def arrivals(self, point: str, count: int) -> list[dict[str, Any]]:
        """Return the reports of so many processes, in the order in which they arrived at the point."""
        pattern = f"{point.replace('@', '-')}-*.json"
        self._wait_for(lambda: len(list(self._pauses.glob(pattern))) >= count, f"{count} at {point}")
        reports = [json.loads(path.read_text()) for path in self._pauses.glob(pattern)]
        return sorted(reports, key=lambda report: (report["at_ms"], report["pid"]))

    def failure(self) -> str | None:
        """Return the reason of a failure after the end, None after success; Spark's whole output is in ``log``."""
        return next(iter(self.failures()), None)

    def failures(self) -> list[str]:
        """Return the reasons of all failures after the end, in the order of the jobs."""
        deadline = time.monotonic() + self._wait_s
        while (status := self._driver.status()) is None:
            assert time.monotonic() < deadline, f"it is still running\n{self.log[-4_000:]}"
            time.sleep(_LOOK_EVERY_S)
        if status == 0:
            return []
        said = [line.removeprefix(FAILURE) for line in self.log.splitlines() if line.startswith(FAILURE)]
        assert said, f"exit status {status}\n{self.log[-4_000:]}"
        return said

    @property
    def log(self) -> str:
        """The output until now."""
        return self._driver.log.read_text(encoding="utf-8", errors="replace")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._wait_s
        while not condition():
            assert self._driver.status() is None, f"it ended before there was {what}\n{self.log[-4_000:]}"
            assert time.monotonic() < deadline, f"there was never {what}\n{self.log[-4_000:]}"
            time.sleep(_LOOK_EVERY_S)

    # -- deeds ----------------------------------------------------------------------------------------

    def release(self, point: str, pid: int | None = None) -> None:
        """Release all processes that wait at the point, now or later; ``pid``: only this one."""
        place = point.replace("@", "-")
        (self._pauses / (f"{place}.release" if pid is None else f"{place}-{pid}.release")).touch()

    def kill(self) -> KilledProcesses:
        """Kill Python and JVM of the driver, and thereby its workers."""
        return self._driver.kill()

    def freeze(self, is_locked: Callable[[], bool]) -> None:
        """Pause every process of the pipeline, but not during a write that blocks other processes."""
        for _ in range(_FREEZES_MAX):
            self._signal(signal.SIGSTOP)
            if not is_locked():
                return
            self.thaw()
            time.sleep(_LOOK_EVERY_S)
        raise AssertionError("it was in the middle of a write whenever it was stopped")

    def thaw(self) -> None:
        """Resume a frozen pipeline."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for found in list_processes(self._driver.pid):
            os.kill(found.pid, number)
