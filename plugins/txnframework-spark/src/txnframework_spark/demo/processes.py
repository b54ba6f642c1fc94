"""The pipeline's processes: a session of their own, so that exactly these can be found and killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txnframework_spark.demo.errors import DemoFailed
from txnframework_spark.unix_sessions import JVM, living, send_kill, wait_until_gone

_GONE_WITHIN_S: Final = 15.0
_WORKERS_LEAVE_WITHIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Killed:
    """The processes that got SIGKILL: the driver's Python, its JVM, and workers that did not end after that."""

    python: int
    jvm: tuple[int, ...]
    workers: tuple[int, ...]


class Driver:
    """A running pipeline. It ends when the demo has ended, because its standard input then ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid of the driver's Python, which is also the number of the session."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> Killed:
        """Send SIGKILL to Python and JVM; return when all processes have ended. DemoFailed if one does not end."""
        jvm = tuple(found.pid for found in living(self.pid) if found.name == JVM)
        for pid in (self.pid, *jvm):
            send_kill(pid, self.pid)
        self._close()
        wait_until_gone(self.pid, _WORKERS_LEAVE_WITHIN_S)
        workers = tuple(found.pid for found in living(self.pid))
        for pid in workers:
            send_kill(pid, self.pid)
        if not wait_until_gone(self.pid, _GONE_WITHIN_S):
            raise DemoFailed(f"processes of the pipeline outlived SIGKILL: {living(self.pid)}")
        return Killed(self.pid, jvm, workers)

    def _close(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
